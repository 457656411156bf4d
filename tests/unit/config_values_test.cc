// SPDX-License-Identifier: Apache-2.0
// Quantities and addresses: every unit and form, and what is refused.
#include <gtest/gtest.h>

#include "config/address.h"
#include "config/quantity.h"

namespace gradgate::config {
namespace {

TEST(QuantityTest, EveryUnit) {
  EXPECT_EQ(parse_rate("7 bit/s").value, 7u);
  EXPECT_EQ(parse_rate("7 kbit/s").value, 7'000u);
  EXPECT_EQ(parse_rate("200 Mbit/s").value, 200'000'000u);
  EXPECT_EQ(parse_rate("10 Gbit/s").value, 10'000'000'000u);
  EXPECT_EQ(parse_duration("3 us").value, 3'000u);
  EXPECT_EQ(parse_duration("3 \u00b5s").value, 3'000u);
  EXPECT_EQ(parse_duration("3 \u03bcs").value, 3'000u);
  EXPECT_EQ(parse_duration("30 ms").value, 30'000'000u);
  EXPECT_EQ(parse_duration("3 s").value, 3'000'000'000u);
  EXPECT_EQ(parse_duration("10 min").value, 600'000'000'000u);
  EXPECT_EQ(parse_duration("2 h").value, 7'200'000'000'000u);
  EXPECT_EQ(parse_size("1024 B").value, 1024u);
  EXPECT_EQ(parse_size("2 KiB").value, 2048u);
  EXPECT_EQ(parse_size("2 MiB").value, 2u << 20);
  EXPECT_EQ(parse_size("2 GiB").value, 2ULL << 30);
  EXPECT_EQ(parse_size("2 kB").value, 2'000u);
  EXPECT_EQ(parse_size("2 MB").value, 2'000'000u);
  EXPECT_EQ(parse_size("2 GB").value, 2'000'000'000u);
}

TEST(QuantityTest, Decimals) {
  EXPECT_EQ(parse_rate("2.5Gbit/s").value, 2'500'000'000u);
  EXPECT_EQ(parse_rate("0.0000000010000 Gbit/s").value, 1u);
  EXPECT_EQ(parse_duration("0.3 ms").value, 300'000u);
  EXPECT_EQ(parse_size("0.5 KiB").value, 512u);
  EXPECT_EQ(parse_size("18446744073709551615 B").value, UINT64_MAX);
}

TEST(QuantityTest, Refused) {
  const std::pair<const char*, const char*> cases[] = {
      {"", "does not begin with a number"},
      {"fast", "does not begin with a number"},
      {"-1 Gbit/s", "does not begin with a number"},
      {".5 Gbit/s", "does not begin with a number"},
      {" 5 Gbit/s", "does not begin with a number"},
      {"5", "has no unit"},
      {"5 ", "has no unit"},
      {"5. Gbit/s", "is no quantity"},
      {"5 gbit/s", "has the unit \"gbit/s\""},
      {"5 Gbit/s ", "has the unit \"Gbit/s \""},
      {"5e3 Gbit/s", "has the unit \"e3 Gbit/s\""},
      {"0.5 bit/s", "is no whole number of bits per second"},
      {"0.0000000000000000000001 Gbit/s", "is no whole number"},
      {"18446744074 Gbit/s", "is too large"},
      {"99999999999999999999999999999999999999999 bit/s", "is too large"},
  };
  for (const auto& [text, what] : cases) {
    const Quantity quantity = parse_rate(text);
    EXPECT_FALSE(quantity.value) << text;
    EXPECT_NE(quantity.what.find(what), std::string::npos) << text << ": " << quantity.what;
    EXPECT_NE(quantity.remedy.find("bit/s, kbit/s, Mbit/s or Gbit/s"), std::string::npos);
  }
}

TEST(QuantityTest, FormatIsReadBack) {
  for (const std::uint64_t value : {1ULL, 999ULL, 1'000ULL, 1'024ULL, 1'500'000ULL, 3'000'000'000ULL, 1ULL << 40}) {
    EXPECT_EQ(parse_rate(format_rate(value)).value, value);
    EXPECT_EQ(parse_size(format_size(value)).value, value);
    EXPECT_EQ(parse_duration(format_duration(value * 1000)).value, value * 1000);
  }
  EXPECT_EQ(format_duration(90'000'000'000), "90 s");
  EXPECT_EQ(format_duration(1'500'000), "1500 us");
  EXPECT_EQ(format_size(2048), "2 KiB");
  EXPECT_EQ(format_rate(0), "0 bit/s");
}

TEST(AddressTest, ParseAndFormat) {
  for (const char* text : {"0.0.0.0", "10.1.0.255"}) EXPECT_EQ(format(parse_ip4(text).value()), text);
  for (const char* text : {"", "10.1.0", "10.1.0.256", "010.1.0.1", "10.1.0.1 ", "::1", "10.1.0.1.1"}) {
    EXPECT_FALSE(parse_ip4(text)) << text;
  }
  EXPECT_FALSE(parse_ip4(std::string_view("10.1.0.1\0x", 10)));
  EXPECT_EQ(format(parse_ip6("2001:DB8:0::1").value()), "2001:db8::1");
  EXPECT_FALSE(parse_ip6("10.1.0.1"));
  EXPECT_EQ(format(parse_mac("02:00:0A:ff:00:03").value()), "02:00:0a:ff:00:03");
  for (const char* text : {"", "02:00:0a:ff:00", "02-00-0a-ff-00-03", "02:00:0a:ff:00:0g", "02:00:0a:ff:00:03:"}) {
    EXPECT_FALSE(parse_mac(text)) << text;
  }
  for (const char* text : {"10.1.0.1/0", "10.1.0.1/32", "2001:db8::1/128"}) {
    EXPECT_EQ(format(parse_cidr(text).value()), text);
  }
  for (const char* text : {"10.1.0.1", "10.1.0.1/", "10.1.0.1/33", "10.1.0.1/024", "10.1.0.1/-1", "::1/129", "/24"}) {
    EXPECT_FALSE(parse_cidr(text)) << text;
  }
  EXPECT_EQ(format(parse_socket_address("[::1]:9470").value()), "[::1]:9470");
  for (const char* text : {"::1:9470", "10.0.0.1", "10.0.0.1:0", "10.0.0.1:65536", "[10.0.0.1]:1", "gw:1", ":1"}) {
    EXPECT_FALSE(parse_socket_address(text)) << text;
  }
  for (const char* text : {"gw:1", "gw-2.example:65535", "10.0.0.1:9470", "[2001:db8::1]:9470", "my_host:1"}) {
    EXPECT_EQ(format(parse_host_port(text).value()), text);
  }
  for (const char* text : {"gw", "gw:", ":1", "10.0.0.300:1", "1.2:1", "::1:1", "[gw]:1", "a b:1", "http://gw:1"}) {
    EXPECT_FALSE(parse_host_port(text)) << text;
  }
}

TEST(AddressTest, Subnets) {
  const auto cidr = [](const char* text) { return parse_cidr(text).value(); };
  const auto ip = [](const char* text) { return parse_ip(text).value(); };
  EXPECT_TRUE(contains(cidr("10.1.0.1/24"), ip("10.1.0.200")));
  EXPECT_FALSE(contains(cidr("10.1.0.1/24"), ip("10.1.1.1")));
  EXPECT_TRUE(contains(cidr("10.1.0.1/23"), ip("10.1.1.1")));
  EXPECT_TRUE(contains(cidr("10.1.0.1/0"), ip("192.0.2.1")));
  EXPECT_FALSE(contains(cidr("10.1.0.1/0"), ip("::1")));
  EXPECT_TRUE(overlap(cidr("10.1.0.1/16"), cidr("10.1.7.1/24")));
  EXPECT_TRUE(overlap(cidr("10.1.7.1/24"), cidr("10.1.0.1/16")));
  EXPECT_FALSE(overlap(cidr("10.1.0.1/24"), cidr("10.1.1.1/24")));
  EXPECT_TRUE(is_reserved_host(cidr("10.1.0.0/24")));
  EXPECT_TRUE(is_reserved_host(cidr("10.1.1.255/23")));
  EXPECT_FALSE(is_reserved_host(cidr("10.1.0.255/23")));
  EXPECT_FALSE(is_reserved_host(cidr("10.1.0.0/31")));
  EXPECT_TRUE(is_reserved_host(cidr("2001:db8::/64")));
  EXPECT_FALSE(is_reserved_host(cidr("2001:db8::ffff:ffff:ffff:ffff/64")));
  EXPECT_FALSE(is_unicast(ip("0.0.0.0")));
  EXPECT_FALSE(is_unicast(ip("255.255.255.255")));
  EXPECT_FALSE(is_unicast(ip("ff02::1")));
  EXPECT_TRUE(is_unicast(ip("2001:db8::1")));
}

}  // namespace
}  // namespace gradgate::config
