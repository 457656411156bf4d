// SPDX-License-Identifier: Apache-2.0
// What gg_comm_init and the calls refuse, and in which words. Needs no gateway.
#include <gtest/gtest.h>

#include <string>

#include "client/gradgate.h"

namespace {

gg_config_t good_config() {
  gg_config_t config;
  gg_config_init(&config);
  config.gateway = "127.0.0.1:1";
  config.tenant = "lab";
  config.token = "secret";
  config.job = "test";
  config.rank = 0;
  config.size = 2;
  return config;
}

std::string refusal(const gg_config_t& config, gg_result_t expected = GG_ERROR_ARGUMENT) {
  gg_comm_t comm = reinterpret_cast<gg_comm_t>(1);
  EXPECT_EQ(gg_comm_init(&comm, &config), expected);
  EXPECT_EQ(comm, nullptr);
  return gg_last_error(nullptr);
}

TEST(ClientConfig, SaysWhatIsWrong) {
  gg_config_t config = good_config();
  config.gateway = nullptr;
  EXPECT_EQ(refusal(config), "config.gateway is not set");
  for (const char* gateway : {"host", "host:", ":9470", "host:0", "host:65536", "host:94x", "host:999999"}) {
    config = good_config();
    config.gateway = gateway;
    EXPECT_EQ(refusal(config), "gateway '" + std::string(gateway) +
                                   "' is not \"host:port\", such as \"10.1.0.1:9470\" ([control] listen)");
  }
  config = good_config();
  config.token = "";
  EXPECT_EQ(refusal(config), "config.token is not set");
  config = good_config();
  config.rank = 2;
  EXPECT_EQ(refusal(config), "config.rank is 2; it must be from 0 to size - 1 = 1");
  config.rank = -1;
  EXPECT_EQ(refusal(config), "config.rank is -1; it must be from 0 to size - 1 = 1");
  config = good_config();
  config.size = 70000;
  EXPECT_EQ(refusal(config), "config.size is 70000; it must be from 1 to 8192");
  config = good_config();
  config.address = "no-such-interface";
  EXPECT_NE(refusal(config).find("there are: lo (127.0.0.1)"), std::string::npos);
  config = good_config();
  config.tenant = "\xff";
  config.struct_bytes = 0;
  EXPECT_EQ(refusal(config), "config was not prepared by gg_config_init()");
  EXPECT_EQ(gg_comm_init(nullptr, &config), GG_ERROR_ARGUMENT);
}

TEST(ClientConfig, GatewayThatIsNotThere) {
  const std::string text = refusal(good_config(), GG_ERROR_UNREACHABLE);
  EXPECT_EQ(text,
            "cannot reach the gateway at 127.0.0.1:1: Connection refused; is gradgate running there, and is this its "
            "[control] listen address?");
}

TEST(ClientConfig, ShorterStructOfAnOlderHeader) {
  gg_config_t config = good_config();
  config.address = reinterpret_cast<const char*>(1);  // beyond what the caller says it has
  config.struct_bytes = offsetof(gg_config_t, address);
  refusal(config, GG_ERROR_UNREACHABLE);
}

TEST(ClientConfig, NullHandles) {
  int done = 0;
  EXPECT_EQ(gg_barrier(nullptr, nullptr), GG_ERROR_ARGUMENT);
  EXPECT_STREQ(gg_last_error(nullptr), "comm is NULL");
  EXPECT_EQ(gg_all_gather(nullptr, nullptr, nullptr, 1, GG_DTYPE_BYTES, nullptr), GG_ERROR_ARGUMENT);
  EXPECT_EQ(gg_wait(nullptr, 0), GG_ERROR_ARGUMENT);
  EXPECT_EQ(gg_test(nullptr, &done), GG_ERROR_ARGUMENT);
  EXPECT_EQ(gg_comm_finalize(nullptr, 0), GG_ERROR_ARGUMENT);
  EXPECT_EQ(gg_comm_destroy(nullptr), GG_SUCCESS);
  gg_request_free(nullptr);
  EXPECT_STREQ(gg_error_string(GG_ERROR_REFUSED), "refused by the gateway");
  EXPECT_STREQ(gg_version(), GRADGATE_VERSION);
}

}  // namespace
