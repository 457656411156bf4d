// SPDX-License-Identifier: Apache-2.0
#include "tests/unit/client_fake_gateway.h"

#include <arpa/inet.h>
#include <errno.h>
#include <poll.h>
#include <string.h>

#include <stdexcept>

#include "client/error.h"
#include "core/group_lane.h"

namespace gradgate::test {
using nlohmann::json;
namespace {

constexpr uint16_t kSite = 1;
constexpr uint32_t kContext = 1;
const char* kind_name(uint8_t kind) {
  static const char* names[] = {"?", "all_reduce", "reduce_scatter", "all_gather", "broadcast", "reduce", "barrier"};
  return kind < GG_KIND_COUNT ? names[kind] : "?";
}

}  // namespace

void FakeGateway::Pool::retain(core::Buffer buffer) {
  ++static_cast<PacketBuffer*>(buffer)->references;
  ++held;
}

void FakeGateway::Pool::release(core::Buffer buffer) {
  auto* packet = static_cast<PacketBuffer*>(buffer);
  --held;
  if (--packet->references == 0) delete packet;
}

bool FakeGateway::Events::push(const core::Event& event) {
  events.push_back(event);
  return true;
}

FakeGateway::Lane::Lane(FakeGateway& gateway, uint8_t lane, uint16_t port)
    : owner(gateway),
      socket("127.0.0.1", port),
      core(new core::GatewayLane(lane, kSite, gateway.pool_, *this, gateway.events_)) {}

bool FakeGateway::Lane::send(const core::Datagram& datagram) {
  if (owner.options_.deaf || owner.lose()) return true;
  return socket.send(datagram, owner.workers_.at(datagram.neighbour));
}

FakeGateway::FakeGateway(const FakeGatewayOptions& options) : options_(options) {
  listener_ = client::UniqueFd(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in own{};
  own.sin_family = AF_INET;
  own.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t bytes = sizeof own;
  if (bind(listener_.get(), reinterpret_cast<sockaddr*>(&own), bytes) != 0 || listen(listener_.get(), 64) != 0 ||
      getsockname(listener_.get(), reinterpret_cast<sockaddr*>(&own), &bytes) != 0)
    throw std::runtime_error(strerror(errno));
  tcp_port_ = ntohs(own.sin_port);
  start_lanes();
  thread_ = std::thread([this] { run(); });
}

FakeGateway::~FakeGateway() {
  {
    std::lock_guard lock(mutex_);
    stop_ = true;
  }
  wake_.signal();
  thread_.join();
}

void FakeGateway::start_lanes() {
  std::random_device device;
  for (int attempt = 0; lanes_.size() < options_.lanes; ++attempt) {
    if (base_port_ == 0 || attempt > 0) base_port_ = static_cast<uint16_t>(20000 + device() % 30000);
    lanes_.clear();
    try {
      for (uint8_t l = 0; l < options_.lanes; ++l)
        lanes_.push_back(std::make_unique<Lane>(*this, l, static_cast<uint16_t>(base_port_ + l)));
    } catch (const client::ClientError&) {
      if (attempt == 100) throw;
    }
  }
}

void FakeGateway::post(Command command) {
  std::unique_lock lock(mutex_);
  command_ = command;
  wake_.signal();
  executed_.wait(lock, [this] { return command_ == Command::kNone; });
}

void FakeGateway::execute(Command command) {
  sessions_.clear();
  snapshot_ = {};
  publish();  // lets go of the buffers
  lanes_.clear();
  dead_ = command == Command::kDie;
  if (!dead_) start_lanes();
}

void FakeGateway::run() {
  std::vector<pollfd> fds;
  for (;;) {
    fds.assign({{wake_.get(), POLLIN, 0}, {dead_ ? -1 : listener_.get(), POLLIN, 0}});
    core::Nanoseconds deadline = core::kNever;
    bool blocked = false;
    for (const auto& lane : lanes_) {
      blocked |= lane->socket.blocked();
      fds.push_back({lane->socket.fd(), static_cast<short>(lane->socket.blocked() ? POLLIN | POLLOUT : POLLIN), 0});
      if (!lane->socket.blocked()) deadline = std::min(deadline, lane->core->next_deadline());
    }
    const size_t first_session = fds.size();
    for (const auto& [fd, session] : sessions_) fds.push_back({fd, POLLIN, 0});
    const core::Nanoseconds before = client::monotonic_ns();
    const core::Nanoseconds wait = deadline <= before ? 0 : std::min(deadline - before, core::kSecond);
    const timespec timeout{static_cast<time_t>(wait / core::kSecond), static_cast<long>(wait % core::kSecond)};
    if (ppoll(fds.data(), fds.size(), &timeout, nullptr) < 0) continue;

    wake_.clear();
    {
      std::lock_guard lock(mutex_);
      if (stop_) break;
      if (command_ != Command::kNone) {
        execute(std::exchange(command_, Command::kNone));
        executed_.notify_all();
        continue;
      }
    }
    if (fds[1].revents != 0) accept_session();
    for (size_t i = first_session; i < fds.size(); ++i) {
      if (fds[i].revents == 0) continue;
      const auto found = sessions_.find(fds[i].fd);
      if (found == sessions_.end() || read_session(found->second)) continue;
      const int rank = found->second.left ? -1 : found->second.rank;
      sessions_.erase(found);
      if (rank >= 0) fail_group("rank " + std::to_string(rank) + " at site fake is gone");
    }
    const core::Nanoseconds now = client::monotonic_ns();
    for (const auto& lane : lanes_) {
      lane->socket.receive(buffers_, [&](client::ReceivedDatagram& datagram) {
        ++packets_;
        if (options_.deaf || lose() || datagram.length < GG_LINK_BYTES || datagram.length > sizeof PacketBuffer::data)
          return;
        auto* packet = new PacketBuffer;
        pool_.retain(packet);
        memcpy(packet->data, datagram.data, datagram.length);
        core::Arrival arrival;
        gg_link_get(packet->data, &arrival.link);
        arrival.packet = packet->data;
        arrival.length = datagram.length;
        arrival.buffer = packet;
        lane->core->receive(arrival, now);
        pool_.release(packet);
      });
      lane->core->poll(now);
      lane->socket.flush();
    }
    handle_events();
  }
  execute(Command::kDie);
}

void FakeGateway::accept_session() {
  client::UniqueFd fd(accept4(listener_.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
  if (fd.get() < 0) return;
  Session& session = sessions_[fd.get()];
  session.fd = std::move(fd);
}

bool FakeGateway::read_session(Session& session) {
  char buffer[4096];
  ssize_t n;
  while ((n = recv(session.fd.get(), buffer, sizeof buffer, 0)) > 0)
    session.input.append(buffer, static_cast<size_t>(n));
  const bool open = n < 0 && errno == EAGAIN;
  const size_t end = session.input.find("\r\n\r\n");
  const size_t field = session.input.find("Content-Length: ");
  if (end == std::string::npos || field == std::string::npos) return open;
  const size_t length = std::stoul(session.input.substr(field + strlen("Content-Length: ")));
  if (session.input.size() < end + 4 + length) return open;
  const std::string path = session.input.substr(5, session.input.find(' ', 5) - 5);
  const json body = json::parse(session.input.substr(end + 4, length));
  session.input.clear();
  handle(session, path, body);
  return open;
}

void FakeGateway::respond(Session& session, int status, const json& body) {
  const std::string text = body.dump();
  const std::string response =
      "HTTP/1.1 " + std::to_string(status) +
      " X\r\nContent-Type: application/json\r\nContent-Length: " + std::to_string(text.size()) + "\r\n\r\n" + text;
  [[maybe_unused]] const ssize_t n = ::send(session.fd.get(), response.data(), response.size(), MSG_NOSIGNAL);
}

void FakeGateway::handle(Session& session, const std::string& path, const json& body) {
  if (path == "/v1/leave") {
    session.left = true;
    ++left_;
    return respond(session, 200, json::object());
  }
  if (body["token"] != "secret") return respond(session, 403, {{"error", "wrong token"}, {"code", "wrong_token"}});
  if (body["size"] != options_.size) {
    return respond(session, 409, {{"error", "the group has another size"}, {"code", "size_mismatch"}});
  }
  session.rank = body["rank"];
  session.join = body;
  session.joining = true;
  uint32_t waiting = 0;
  for (const auto& [fd, other] : sessions_) waiting += other.joining;
  if (waiting == options_.size) form();
}

void FakeGateway::form() {
  core::GroupConfig config;
  config.name = "test/default";
  config.context = kContext;
  config.generation = 1;
  config.size = options_.size;
  config.chunk_bytes = options_.chunk_bytes;
  config.lanes = options_.lanes;
  config.window = options_.window;
  config.sites = {{kSite, core::kNoNeighbour, 1}};
  config.site_of_rank.assign(options_.size, kSite);
  // Close to the end of the serial numbers, so that every longer test wraps around.
  for (uint32_t l = 0; l < options_.lanes; ++l) config.start.push_back(0u - 64u * options_.lanes + l);
  std::vector<uint32_t> low = config.start;
  json ranks = json::array();
  workers_.resize(options_.size);
  snapshot_.site = kSite;
  snapshot_.neighbours.assign(options_.size, nullptr);
  for (auto& [fd, session] : sessions_) {
    if (!session.joining) continue;
    const auto rank = static_cast<uint16_t>(session.rank);
    const uint32_t label = gg_label(kSite, kContext + 100 + rank);
    config.members.push_back({rank, rank, label});
    ranks.push_back(rank);
    if (session.join.contains("restore")) {
      const auto heard = session.join["restore"]["low"].get<std::vector<uint32_t>>();
      for (size_t l = 0; l < low.size(); ++l) low[l] = core::serial_max(low[l], heard[l]);
    }
    core::LinkConfig link;
    link.neighbour = rank;
    link.remote_link = session.join["link"];
    link.link_label = label;
    link.trailer_crc = options_.trailer_crc;
    link.chunk_bytes = options_.chunk_bytes;
    link.max_packet_bytes = options_.chunk_bytes + 400;
    link.max_in_flight = 64;
    auto neighbour = std::make_shared<core::Neighbour>(link, options_.lanes);
    neighbour->local_link = static_cast<uint32_t>(random_()) << 16 | rank;
    neighbour->trailer_crc = options_.trailer_crc;
    snapshot_.neighbours[rank] = neighbour;
    sockaddr_in& to = workers_[rank];
    to.sin_family = AF_INET;
    to.sin_port = htons(session.join["udp_port"].get<uint16_t>());
    inet_pton(AF_INET, session.join["address"].get<std::string>().c_str(), &to.sin_addr);
  }
  std::sort(config.members.begin(), config.members.end(), [](auto& a, auto& b) { return a.rank < b.rank; });
  const std::vector<uint32_t> start = config.start;
  snapshot_.groups.assign(kContext + 1, {});
  snapshot_.groups[kContext].group = std::make_shared<core::Group>(std::move(config), kSite, low);
  snapshot_.groups[kContext].site_labels = {0};
  publish();
  for (auto& [fd, session] : sessions_) {
    if (!session.joining) continue;
    session.joining = false;
    respond(session, 200,
            {{"plan",
              {{"group_id", "0123456789abcdef"},
               {"generation", 1},
               {"tenant", "lab"},
               {"job", "test"},
               {"group", "default"},
               {"size", options_.size},
               {"chunk_bytes", options_.chunk_bytes},
               {"lanes", options_.lanes},
               {"window", options_.window},
               {"exchange_limit_bytes", 65536},
               {"start", start},
               {"sites", {{{"id", kSite}, {"name", "fake"}, {"weight", 1}, {"ranks", ranks}}}}}},
             {"site", kSite},
             {"gateway", {{"address", "127.0.0.1"}, {"udp_port", base_port_}}},
             {"remote_link", snapshot_.neighbours[static_cast<size_t>(session.rank)]->local_link},
             {"group_label", gg_label(kSite, kContext)},
             {"own_label", gg_label(kSite, kContext + 100 + static_cast<uint32_t>(session.rank))},
             {"trailer_crc_send", options_.trailer_crc},
             {"trailer_crc_receive", options_.trailer_crc},
             {"max_in_flight", 64},
             {"heartbeat_ms", options_.heartbeat_ms},
             {"worker_timeout_ms", options_.worker_timeout_ms},
             {"call_timeout_ms", options_.call_timeout_ms}});
  }
}

void FakeGateway::fail_group(const std::string& text) {
  if (snapshot_.groups.empty() || snapshot_.groups[kContext].error) return;
  snapshot_.groups[kContext].error = std::make_shared<const std::string>(text);
  publish();
}

void FakeGateway::publish() {
  ++snapshot_.generation;
  const auto copy = std::make_shared<const core::Snapshot>(snapshot_);
  for (const auto& lane : lanes_) lane->core->apply(copy, client::monotonic_ns());
}

void FakeGateway::handle_events() {
  for (const core::Event& event : std::exchange(events_.events, {})) {
    if (event.type != core::Event::Type::kMismatch) continue;
    const auto describe = [](uint16_t rank, const core::CallParameters& call) {
      return "rank " + std::to_string(rank) + " called " + kind_name(call.kind) + " of " +
             std::to_string(call.elements) + " elements";
    };
    fail_group(describe(event.rank, event.call) + ", " + describe(event.other_rank, event.other_call));
  }
}

}  // namespace gradgate::test
