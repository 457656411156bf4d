// SPDX-License-Identifier: Apache-2.0
// A gateway of one site for tests of the client: the join protocol and core::GatewayLane over UDP sockets on
// loopback, in one thread. Loses packets, dies and comes back on request.
#pragma once

#include <nlohmann/json.hpp>

#include <atomic>
#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "client/udp_socket.h"
#include "core/gateway_lane.h"

namespace gradgate::test {

struct FakeGatewayOptions {
  uint16_t size = 2;
  uint8_t lanes = 4;
  uint32_t window = 64;
  uint32_t chunk_bytes = 1024;
  double loss = 0;  ///< of packets, each way
  bool trailer_crc = false;
  bool deaf = false;  ///< never answers UDP
  uint64_t heartbeat_ms = 100;
  uint64_t worker_timeout_ms = 2000;
  uint64_t call_timeout_ms = 30000;
};

class FakeGateway {
 public:
  explicit FakeGateway(const FakeGatewayOptions& options);
  ~FakeGateway();

  std::string address() const { return "127.0.0.1:" + std::to_string(tcp_port_); }
  /// Forgets everything, as after a crash, before it returns; workers may join again at once.
  void restart() { post(Command::kRestart); }
  /// As restart(), but nobody can join again.
  void die() { post(Command::kDie); }
  /// Buffers that lanes hold references to.
  int64_t buffers_held() const { return pool_.held.load(); }
  uint32_t left() const { return left_.load(); }
  uint64_t packets() const { return packets_.load(); }

 private:
  enum class Command { kNone, kRestart, kDie };

  struct PacketBuffer {
    uint32_t references = 0;
    uint8_t data[4096];
  };
  struct Pool final : core::BufferPool {
    void retain(core::Buffer buffer) override;
    void release(core::Buffer buffer) override;
    bool below_reserve() const override { return false; }
    std::atomic<int64_t> held{0};
  };
  struct Events final : core::EventSink {
    bool push(const core::Event& event) override;
    std::vector<core::Event> events;
  };
  struct Lane final : core::Output {
    Lane(FakeGateway& owner, uint8_t lane, uint16_t port);
    bool send(const core::Datagram& datagram) override;
    FakeGateway& owner;
    client::UdpSocket socket;
    std::unique_ptr<core::GatewayLane> core;
  };
  struct Session {
    client::UniqueFd fd;
    std::string input;
    int rank = -1;
    bool left = false;
    bool joining = false;
    nlohmann::json join;
  };

  void post(Command command);
  void run();
  void execute(Command command);
  void start_lanes();
  void accept_session();
  bool read_session(Session& session);
  void handle(Session& session, const std::string& path, const nlohmann::json& body);
  void form();
  void fail_group(const std::string& text);
  void publish();
  void handle_events();
  static void respond(Session& session, int status, const nlohmann::json& body);
  bool lose() { return options_.loss > 0 && std::uniform_real_distribution<>(0, 1)(random_) < options_.loss; }

  const FakeGatewayOptions options_;
  client::UniqueFd listener_;
  uint16_t tcp_port_ = 0;
  uint16_t base_port_ = 0;
  Pool pool_;
  Events events_;
  client::ReceiveBuffers buffers_;
  std::vector<std::unique_ptr<Lane>> lanes_;
  std::map<int, Session> sessions_;
  std::vector<sockaddr_in> workers_;  ///< by rank, which is also the neighbour
  core::Snapshot snapshot_;
  std::minstd_rand random_{1};
  bool dead_ = false;
  client::WakeFd wake_;
  std::mutex mutex_;
  std::condition_variable executed_;
  Command command_ = Command::kNone;
  bool stop_ = false;
  std::atomic<uint32_t> left_{0};
  std::atomic<uint64_t> packets_{0};
  std::thread thread_;
};

}  // namespace gradgate::test
