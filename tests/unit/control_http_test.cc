// SPDX-License-Identifier: Apache-2.0
// The real server on loopback with a fake data plane: HTTP limits, joins, WebSockets between two gateways.
#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <future>
#include <random>
#include <thread>

#include "control/api.h"
#include "control/control.h"
#include "tests/unit/control_world.h"

namespace gradgate::control::testing {
namespace {

using ::testing::HasSubstr;
using Clock = std::chrono::steady_clock;
constexpr std::chrono::seconds kDeadline{10};

/// A control thread with its data plane.
class Server {
 public:
  explicit Server(const config::Site& site, ControlOptions options = {.signals = false})
      : site_(site), control_((prepare(), site_), dataplane, options) {
    std::promise<void> ready;
    control_.on_listening([&ready] { ready.set_value(); });
    thread_ = std::thread([this] { control_.run(); });
    ready.get_future().wait();
  }
  ~Server() { stop(); }

  void stop() {
    control_.stop();
    join();
  }
  void join() {
    if (thread_.joinable()) thread_.join();
  }
  uint16_t port() const { return control_.port(); }

  FakeDataplane dataplane;

 private:
  void prepare() {
    dataplane.clock = [] { return static_cast<uint64_t>(Clock::now().time_since_epoch().count()); };
  }
  config::Site site_;
  Control control_;
  std::thread thread_;
};

config::Site loopback_site(uint16_t id, uint16_t sites) {
  config::Site site = make_site(id, sites);
  site.control.listen = {config::Ip4{{127, 0, 0, 1}}, 0};
  return site;
}

struct Response {
  int status = 0;  ///< 0: the connection ended
  std::string header, body;
  Json json() const { return Json::parse(body); }
};

/// A plain TCP socket that speaks what the test says.
class Client {
 public:
  explicit Client(uint16_t port) : fd_(socket(AF_INET, SOCK_STREAM, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(port);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    EXPECT_EQ(connect(fd_, reinterpret_cast<sockaddr*>(&address), sizeof address), 0) << strerror(errno);
  }
  ~Client() { close(); }
  Client(Client&& other) noexcept : fd_(std::exchange(other.fd_, -1)), buffer_(std::move(other.buffer_)) {}
  void close() {
    if (fd_ >= 0) ::close(fd_);
    fd_ = -1;
  }

  void send(std::string_view text) {
    while (!text.empty()) {
      const ssize_t sent = ::send(fd_, text.data(), text.size(), MSG_NOSIGNAL);
      if (sent <= 0) return;
      text.remove_prefix(static_cast<size_t>(sent));
    }
  }
  void post(const std::string& path, const std::string& body) {
    send("POST " + path + " HTTP/1.1\r\nHost: g\r\nContent-Length: " + std::to_string(body.size()) + "\r\n\r\n" + body);
  }
  /// False: closed by the server, or the deadline passed.
  bool fill(Clock::duration within = kDeadline) {
    pollfd ready{fd_, POLLIN, 0};
    if (poll(&ready, 1, static_cast<int>(std::chrono::milliseconds(within / std::chrono::milliseconds(1)).count())) <=
        0) {
      timed_out = true;
      return false;
    }
    char data[65536];
    const ssize_t got = recv(fd_, data, sizeof data, 0);
    if (got <= 0) return false;
    buffer_.append(data, static_cast<size_t>(got));
    return true;
  }
  Response read(Clock::duration within = kDeadline) {
    Response response;
    size_t end;
    while ((end = buffer_.find("\r\n\r\n")) == std::string::npos)
      if (!fill(within)) return response;
    response.header = buffer_.substr(0, end + 2);
    const size_t length = response.header.find("Content-Length: ");
    const size_t bytes = length == std::string::npos ? 0 : std::stoul(response.header.substr(length + 16));
    while (buffer_.size() < end + 4 + bytes)
      if (!fill(within)) return {};
    response.body = buffer_.substr(end + 4, bytes);
    buffer_.erase(0, end + 4 + bytes);
    response.status = std::stoi(response.header.substr(9));
    return response;
  }
  Response get(const std::string& path) {
    send("GET " + path + " HTTP/1.1\r\nHost: g\r\n\r\n");
    return read();
  }
  /// The server has ended the connection within the deadline.
  bool ended() {
    while (fill()) {
    }
    return !timed_out;
  }
  /// WebSocket upgrade, then text messages.
  void upgrade() {
    send(
        "GET /v1/peer HTTP/1.1\r\nHost: g\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
        "Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n");
    EXPECT_EQ(read().status, 101);
  }
  void message(const std::string& text) {
    std::string frame("\x81", 1);  // final, text; the mask is zero
    frame += static_cast<char>(0x80 | (text.size() < 126 ? text.size() : 126));
    if (text.size() >= 126) {
      frame += static_cast<char>(text.size() >> 8);
      frame += static_cast<char>(text.size());
    }
    frame += std::string(4, '\0');
    send(frame + text);
  }

  bool timed_out = false;

 private:
  int fd_;
  std::string buffer_;
};

Json join_body(uint16_t site, uint16_t rank, uint16_t size) {
  return {{"tenant", "lab"},
          {"token", "lab-token-1"},
          {"job", "gpt"},
          {"group", "dp"},
          {"rank", rank},
          {"size", size},
          {"udp_port", 40000 + rank},
          {"address", "10." + std::to_string(site) + ".0." + std::to_string(10 + rank)},
          {"link", 1000u + rank}};
}

Json groups(uint16_t port) {
  return Client(port).get("/v1/groups").json();
}

/// Asks again until the condition holds or the deadline has passed.
template <typename Condition>
bool eventually(Condition condition) {
  const auto end = Clock::now() + kDeadline;
  while (!condition()) {
    if (Clock::now() > end) return false;
    std::this_thread::yield();
  }
  return true;
}

TEST(Http, TwoWorkersJoinLeaveAndKeepTheirConnections) {
  Server server(loopback_site(1, 1));
  Client zero(server.port()), one(server.port());
  zero.post("/v1/join", join_body(1, 0, 2).dump());
  ASSERT_TRUE(eventually([&] { return groups(server.port()).size() == 1; }));
  EXPECT_EQ(groups(server.port())[0]["missing"], Json({1}));
  EXPECT_EQ(groups(server.port())[0]["state"], "forming");
  one.post("/v1/join", join_body(1, 1, 2).dump());
  const Response first = zero.read(), second = one.read();
  ASSERT_EQ(first.status, 200) << first.body;
  ASSERT_EQ(second.status, 200) << second.body;
  EXPECT_EQ(first.json()["plan"], second.json()["plan"]);
  EXPECT_NE(first.json()["remote_link"], second.json()["remote_link"]);
  const Json group = groups(server.port())[0];
  EXPECT_EQ(group["state"], "running");
  EXPECT_EQ(group["sites"], Json::parse(R"([{"id":1,"name":"a","ranks":[0,1]}])"));
  for (const auto& [client, rank] : {std::pair(&zero, 0), std::pair(&one, 1)}) {
    client->post(
        "/v1/leave",
        Json{{"tenant", "lab"}, {"token", "lab-token-1"}, {"group_id", group["group_id"]}, {"rank", rank}}.dump());
    const Response left = client->read();
    EXPECT_EQ(left.status, 200) << left.body;
    EXPECT_EQ(left.json(), Json::object());
  }
  EXPECT_TRUE(groups(server.port()).empty());
}

TEST(Http, BadBodiesSayWhatIsWrongAndWhere) {
  Server server(loopback_site(1, 1));
  Client client(server.port());
  const auto refused = [&](const std::string& body, int status, const std::string& code, const std::string& text) {
    client.post("/v1/join", body);
    const Response response = client.read();
    EXPECT_EQ(response.status, status) << body;
    EXPECT_EQ(response.json()["code"], code) << body;
    EXPECT_THAT(response.json()["error"].get<std::string>(), HasSubstr(text)) << body;
  };
  refused("{\"tenant\": \"lab\",\n  oops}", 400, "bad_request", "line 2, column 3");
  refused("", 400, "bad_request", "line 1, column 1");
  refused("[1]", 400, "bad_request", "must be a JSON object, not [1]");
  refused("{\"tenant\":\"\xff\"}", 400, "bad_request", "invalid");
  refused(std::string(60000, '['), 400, "bad_request", "not JSON");
  refused("{}", 400, "bad_request", "\"tenant\" is missing");
  const auto with = [](const char* key, const Json& value) {
    Json body = join_body(1, 0, 2);
    body[key] = value;
    return body.dump();
  };
  refused(with("token", "lab-token-2"), 403, "wrong_token", "wrong token for tenant lab");
  refused(with("token", "lab-token-"), 403, "wrong_token", "wrong token");
  refused(with("token", ""), 403, "wrong_token", "wrong token");
  refused(with("token", 5), 400, "bad_request", "\"token\" must be a string");
  refused(with("tenant", "nobody"), 403, "unknown_tenant", "site a has no tenant nobody");
  refused(with("job", "a b"), 400, "bad_request", "\"job\" must be 1 to 64 of");
  refused(with("job", std::string(65, 'x')), 400, "bad_request", "\"job\" must be 1 to 64 of");
  refused(with("rank", -1), 400, "bad_request", "\"rank\" must be a whole number from 0 to 8191, not -1");
  refused(with("rank", 0.5), 400, "bad_request", "not 0.5");
  refused(with("rank", 2), 400, "bad_request", "rank 2 of group gpt/dp is not below its size 2");
  refused(with("size", 100000), 400, "bad_request", "\"size\" must be a whole number from 1 to 8192");
  refused(with("link", 1ull << 32), 400, "bad_request", "\"link\" must be");
  refused(with("udp_port", 0), 400, "bad_request", "\"udp_port\" must be");
  refused(with("address", "255.255.255.255"), 400, "bad_request", "\"address\" must be a host's IPv4 address");
  refused(with("restore", {{"plan", {{"group_id", "x"}}}}), 400, "bad_request",
          "\"restore.plan.group_id\" must be 16 hexadecimal digits");
  EXPECT_TRUE(groups(server.port()).empty());
}

TEST(Http, UnknownPathsMethodsAndSizes) {
  Server server(loopback_site(1, 1));
  Client client(server.port());
  Response response = client.get("/nowhere\xff");
  EXPECT_EQ(response.status, 404);
  EXPECT_THAT(response.json()["error"].get<std::string>(), HasSubstr("no such path: /nowhere")) << "valid JSON";
  Client again(server.port());
  response = again.get("/nowhere");
  EXPECT_EQ(response.status, 404);
  EXPECT_EQ(response.json()["code"], "not_found");
  response = again.get("/v1/join");
  EXPECT_EQ(response.status, 405);
  EXPECT_THAT(response.header, HasSubstr("Allow: POST\r\n"));
  again.post("/v1/status?x=1", "");
  response = again.read();
  EXPECT_EQ(response.status, 405);
  EXPECT_THAT(response.header, HasSubstr("Allow: GET\r\n"));
  response = again.get("/v1/peer");
  EXPECT_EQ(response.status, 400);

  Client large(server.port());
  large.send("POST /v1/join HTTP/1.1\r\nContent-Length: 65537\r\n\r\n");
  response = large.read();
  EXPECT_EQ(response.status, 413);
  EXPECT_EQ(response.json()["code"], "too_large");
  EXPECT_TRUE(large.ended());
  Client sending(server.port());
  sending.post("/v1/join", std::string(200'000, ' '));
  EXPECT_EQ(sending.read().status, 413) << "the answer arrives although the body was sent";
  Client chunked(server.port());
  chunked.send("POST /v1/join HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n10000\r\n" + std::string(65536, ' ') +
               "\r\n10000\r\n" + std::string(65536, ' '));
  EXPECT_EQ(chunked.read().status, 413);
  Client header(server.port());
  header.send("GET /v1/status HTTP/1.1\r\nX: " + std::string(9000, 'x') + "\r\n\r\n");
  EXPECT_EQ(header.read().status, 431);
  Client garbage(server.port());
  garbage.send("\x16\x03\x01 this is no HTTP\r\n\r\n");
  EXPECT_EQ(garbage.read().status, 400);
  EXPECT_TRUE(garbage.ended());
  Client old(server.port());
  old.send("GET /v1/status HTTP/1.0\r\n\r\n");
  EXPECT_EQ(old.read().status, 200);
  EXPECT_TRUE(old.ended());
  Client expecting(server.port());
  expecting.send("POST /v1/join HTTP/1.1\r\nExpect: 100-continue\r\nContent-Length: 2\r\n\r\n");
  EXPECT_EQ(expecting.read().status, 100);
  expecting.send("{}");
  EXPECT_EQ(expecting.read().status, 400);
}

TEST(Http, ASlowRequestEndsAtTheTimeoutAndHoldsNobodyUp) {
  Server server(loopback_site(1, 1), {.request_timeout_ns = 200'000'000, .signals = false});
  Client slow(server.port()), slow_body(server.port()), idle(server.port());
  slow.send("GET /v1/sta");
  slow_body.send("POST /v1/join HTTP/1.1\r\nContent-Length: 100\r\n\r\n{");
  EXPECT_EQ(Client(server.port()).get("/v1/status").status, 200);
  EXPECT_TRUE(slow.ended());
  EXPECT_TRUE(slow_body.ended());
  EXPECT_EQ(idle.get("/v1/status").status, 200) << "a connection without a request is not a slow one";
}

TEST(Http, PipelinedRequestsAreAnsweredInOrder) {
  Server server(loopback_site(1, 1));
  Client client(server.port());
  client.send("GET /v1/status HTTP/1.1\r\n\r\nGET /nowhere HTTP/1.1\r\n\r\nGET /v1/groups HTTP/1.1\r\n\r\n");
  EXPECT_TRUE(client.read().json().contains("counters"));
  EXPECT_EQ(client.read().status, 404);
  EXPECT_EQ(client.read().json(), Json::array());
  // Behind a join that waits, in two pieces.
  client.post("/v1/join", join_body(1, 0, 2).dump());
  ASSERT_TRUE(eventually([&] { return groups(server.port()).size() == 1; }));
  client.send("GET /v1/st");
  client.send("atus HTTP/1.1\r\n\r\n");
  Client other(server.port());
  other.post("/v1/join", join_body(1, 1, 2).dump());
  EXPECT_TRUE(client.read().json().contains("plan"));
  EXPECT_TRUE(client.read().json().contains("counters"));
}

TEST(Http, AClientThatHangsUpWhileItWaitsFreesItsRank) {
  Server server(loopback_site(1, 1));
  {
    Client gone(server.port());
    gone.post("/v1/join", join_body(1, 0, 2).dump());
    ASSERT_TRUE(eventually([&] { return groups(server.port()).size() == 1; }));
  }
  EXPECT_TRUE(eventually([&] { return groups(server.port()).empty(); }));
}

TEST(Http, RandomBytesNeverEndIt) {
  Server server(loopback_site(1, 1));
  std::mt19937 random(1);
  const std::string valid =
      "POST /v1/join HTTP/1.1\r\nHost: g\r\nContent-Length: 200\r\n\r\n" + join_body(1, 0, 2).dump();
  for (int i = 0; i < 300; ++i) {
    std::string bytes = valid;
    for (int flips = 0; flips < 1 + i % 20; ++flips) bytes[random() % bytes.size()] = static_cast<char>(random());
    Client(server.port()).send(bytes);
  }
  EXPECT_TRUE(eventually([&] { return Client(server.port()).get("/v1/status").status == 200; }));
}

TEST(Http, ConnectionsBeyondTheLimitAreRefused) {
  rlimit limit{};
  getrlimit(RLIMIT_NOFILE, &limit);
  const rlimit old = limit;
  limit.rlim_cur = std::max<rlim_t>(limit.rlim_cur, 4096);
  if (limit.rlim_max < 4096 || setrlimit(RLIMIT_NOFILE, &limit) != 0)
    GTEST_SKIP() << "needs 4096 file descriptors, RLIMIT_NOFILE allows " << limit.rlim_max;
  {
    Server server(loopback_site(1, 1));
    std::vector<Client> clients;
    for (int i = 0; i < 1024; ++i) clients.emplace_back(server.port());
    EXPECT_EQ(clients.back().get("/v1/groups").status, 200);
    Client beyond(server.port());
    EXPECT_EQ(beyond.read().status, 503);
    clients.pop_back();
    EXPECT_TRUE(eventually([&] { return Client(server.port()).get("/v1/groups").status == 200; }));
  }
  setrlimit(RLIMIT_NOFILE, &old);
}

TEST(Http, MetricsPassPromtool) {
  if (system("command -v promtool >/dev/null 2>&1") != 0)
    GTEST_SKIP() << "promtool is missing: apt-get install prometheus";
  Server server(loopback_site(1, 2));
  Client zero(server.port());
  zero.post("/v1/join", join_body(1, 0, 1).dump());
  ASSERT_EQ(zero.read().status, 200);
  const Response response = Client(server.port()).get("/metrics");
  EXPECT_THAT(response.header, HasSubstr("Content-Type: text/plain; version=0.0.4"));
  EXPECT_THAT(response.body, HasSubstr("state=\"running\"} 1\n"));
  FILE* promtool = popen("promtool check metrics 2>&1", "w");
  ASSERT_NE(promtool, nullptr);
  fwrite(response.body.data(), 1, response.body.size(), promtool);
  EXPECT_EQ(pclose(promtool), 0);
}

TEST(Http, StopsOnSignalAndTellsWhoWaitsAndWhoRuns) {
  Server server(loopback_site(1, 1), {.signals = true});
  Client running(server.port()), waiting(server.port());
  running.post("/v1/join", join_body(1, 0, 1).dump());
  ASSERT_EQ(running.read().status, 200);
  Json body = join_body(1, 0, 2);
  body["job"] = "bert";
  waiting.post("/v1/join", body.dump());
  ASSERT_TRUE(eventually([&] { return groups(server.port()).size() == 2; }));
  const auto begin = Clock::now();
  kill(getpid(), SIGTERM);
  const Response response = waiting.read();
  EXPECT_EQ(response.status, 503);
  EXPECT_EQ(response.json()["code"], "stopping");
  server.join();
  EXPECT_LT(Clock::now() - begin, std::chrono::seconds(3));
  EXPECT_THAT(*server.dataplane.snapshot()->groups[1].error, HasSubstr("the gateway of site a is stopping"));
  EXPECT_TRUE(running.ended());
}

TEST(Http, AnAddressThatCannotBeBoundSaysTheRemedy) {
  Server server(loopback_site(1, 1));
  config::Site site = loopback_site(2, 1);
  site.control.listen.port = server.port();
  FakeDataplane dataplane;
  try {
    Control control(site, dataplane);
    FAIL() << "bound twice";
  } catch (const std::runtime_error& error) {
    EXPECT_THAT(error.what(), HasSubstr("no other program listens on"));
  }
}

TEST(Token, ComparedWhole) {
  EXPECT_TRUE(equal_in_constant_time("secret", "secret"));
  EXPECT_FALSE(equal_in_constant_time("secre", "secret"));
  EXPECT_FALSE(equal_in_constant_time("secretsecret", "secret"));
  EXPECT_FALSE(equal_in_constant_time("secret", ""));
  EXPECT_FALSE(equal_in_constant_time("", "secret"));
}

/// Sites a and b; a, the lower, dials b.
class TwoSites : public ::testing::Test {
 protected:
  TwoSites() { start_b(0); }

  void start_b(uint16_t port) {
    config::Site site = loopback_site(2, 2);
    site.control.listen.port = port;
    b = std::make_unique<Server>(site);
  }
  void start_a() {
    config::Site site = loopback_site(1, 2);
    site.peers[0].control = {"localhost", b->port()};
    a = std::make_unique<Server>(site);
  }
  static bool peer_up(Server& server) {
    return Client(server.port()).get("/v1/status").json()["peers"][0]["up"].get<bool>();
  }

  std::unique_ptr<Server> a, b;
};

TEST_F(TwoSites, AGroupFormsOverRealWebSocketsAndFailsWhenAGatewayStops) {
  start_a();
  Client zero(a->port()), one(b->port());
  zero.post("/v1/join", join_body(1, 0, 2).dump());
  one.post("/v1/join", join_body(2, 1, 2).dump());
  const Response first = zero.read(), second = one.read();
  ASSERT_EQ(first.status, 200) << first.body;
  ASSERT_EQ(second.status, 200) << second.body;
  EXPECT_EQ(first.json()["plan"], second.json()["plan"]);
  // Packets between the sites carry the link ids that the other assigned.
  const auto at_a = a->dataplane.snapshot(), at_b = b->dataplane.snapshot();
  EXPECT_EQ(at_a->neighbours[0]->lanes[0]->config().remote_link, at_b->neighbours[0]->local_link);
  EXPECT_EQ(at_b->neighbours[0]->lanes[0]->config().remote_link, at_a->neighbours[0]->local_link);
  EXPECT_EQ(at_a->groups[1].site_labels[1], second.json()["group_label"].get<uint32_t>());
  b->stop();
  EXPECT_TRUE(eventually([&] { return a->dataplane.snapshot()->groups[1].error != nullptr; }));
  EXPECT_THAT(*a->dataplane.snapshot()->groups[1].error, HasSubstr("the gateway of site b is stopping"));
}

TEST_F(TwoSites, ARestartedGatewayIsANewEpochOnBothSides) {
  start_a();
  ASSERT_TRUE(eventually([&] { return peer_up(*a) && peer_up(*b); }));
  const uint32_t old_link = a->dataplane.snapshot()->neighbours[0]->local_link;
  const uint16_t port = b->port();
  b.reset();
  EXPECT_TRUE(eventually([&] { return !peer_up(*a); }));
  start_b(port);
  ASSERT_TRUE(eventually([&] { return peer_up(*a) && peer_up(*b); }));
  const auto at_a = a->dataplane.snapshot(), at_b = b->dataplane.snapshot();
  EXPECT_NE(at_a->neighbours[0]->local_link, old_link);
  EXPECT_EQ(at_a->neighbours[0]->lanes[0]->config().remote_link, at_b->neighbours[0]->local_link);
  EXPECT_EQ(at_b->neighbours[0]->lanes[0]->config().remote_link, at_a->neighbours[0]->local_link);
}

TEST_F(TwoSites, StrangersAreRefused) {
  const Json hello = {
      {"type", "hello"}, {"site", 1},        {"name", "a"}, {"version", "0.1.0"}, {"boot", "0123456789abcdef"},
      {"peer_boot", ""}, {"udp_port", 9472}, {"link", 5},   {"lanes", 4},         {"chunk_bytes", 1024}};
  const auto refused = [&](const std::string& text) {
    Client client(b->port());
    client.upgrade();
    client.message(text);
    return client.ended();
  };
  EXPECT_TRUE(refused("no JSON"));
  EXPECT_TRUE(refused("{}"));
  for (const auto& [key, value] : {std::pair<const char*, Json>("site", 9),
                                   {"name", "b"},
                                   {"boot", "x"},
                                   {"link", -1},
                                   {"udp_port", 0},
                                   {"type", "members"},
                                   {"lanes", 65}}) {
    Json other = hello;
    other[key] = value;
    EXPECT_TRUE(refused(other.dump())) << other;
  }
  EXPECT_FALSE(peer_up(*b));
  Client good(b->port());
  good.upgrade();
  good.message(hello.dump());
  EXPECT_TRUE(eventually([&] { return peer_up(*b); }));
  EXPECT_NE(b->dataplane.snapshot()->neighbours[0], nullptr);
  good.message(R"({"type":"form","plan":7})");
  EXPECT_TRUE(good.ended()) << "a malformed message ends the connection";
  EXPECT_TRUE(eventually([&] { return !peer_up(*b); }));
}

}  // namespace
}  // namespace gradgate::control::testing
