// SPDX-License-Identifier: Apache-2.0
// [dataplane], [control], [group], [[tenant]] and [log].
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <map>
#include <set>

#include "config/quote.h"
#include "config/read_site.h"

namespace gradgate::config {
namespace {

constexpr std::size_t kMaxTenants = 1024;
constexpr std::size_t kMaxEalArguments = 64;
constexpr std::int64_t kMaxCpu = 1023;  // glibc's CPU_SETSIZE - 1
constexpr unsigned kMinChunkBytes = 256;
constexpr unsigned kMaxChunkBytes = 8192;
// IPv4, UDP, link header, the chunk's frame header, one small frame beside it (an ACK or WATERMARK riding along),
// CRC32C.
constexpr unsigned kOverheadBytes = 20 + 8 + GG_LINK_BYTES + 2 * GG_FRAME_BYTES + GG_CRC_BYTES;
// AF_XDP's PMD takes 2048 for the fill ring and 2048 for transmission before the first packet is kept.
constexpr std::int64_t kMinBuffers = 8192;
constexpr std::int64_t kMaxBuffers = 4'194'304;
constexpr std::size_t kMinTokenBytes = 8;
constexpr std::size_t kMaxTokenBytes = 512;
constexpr std::size_t kMaxTokenFileBytes = 4096;

void read_lanes(Section& section, Dataplane& dataplane) {
  const auto lanes = section.integer("lanes", "4", 1, GG_MAX_LANES, Need::kOptional);
  if (!lanes) return;
  const unsigned value = static_cast<unsigned>(*lanes);
  if (!std::has_single_bit(value)) {
    section.fault("lanes", fmt::format("{} is no power of two", value),
                  fmt::format("use {} or {}", std::bit_floor(value), std::bit_ceil(value)));
    return;
  }
  dataplane.lanes = value;
}

void read_lcores(Section& section, Report& report, Dataplane& dataplane) {
  for (const Item<std::int64_t>& item : section.integers("lcores", "[2, 3]", GG_MAX_LANES)) {
    if (item.value < 0 || item.value > kMaxCpu) {
      report.fault(item.place, item.where, fmt::format("{} is no CPU number", item.value),
                   fmt::format("use a CPU from 0 to {}", kMaxCpu));
      continue;
    }
    const unsigned cpu = static_cast<unsigned>(item.value);
    if (std::find(dataplane.lcores.begin(), dataplane.lcores.end(), cpu) != dataplane.lcores.end()) {
      report.fault(item.place, item.where, fmt::format("CPU {} stands here twice", cpu), "name each CPU once");
      continue;
    }
    dataplane.lcores.push_back(cpu);
  }
  if (dataplane.lcores.size() > dataplane.lanes) {
    section.fault(
        "lcores",
        fmt::format("{} lcores for {} lanes: some would have no lane", dataplane.lcores.size(), dataplane.lanes),
        fmt::format("name {} CPUs at most, or set lanes = {}", dataplane.lanes,
                    std::bit_ceil(dataplane.lcores.size())));
  }
}

void read_chunk(Section& section, const std::vector<Port>& ports, Dataplane& dataplane) {
  const auto read =
      section.quantity("chunk", "\"1024 B\"", parse_size, format_size, kMinChunkBytes, kMaxChunkBytes, Need::kOptional);
  const unsigned chunk = read ? static_cast<unsigned>(*read) : dataplane.chunk_bytes;
  if (!std::has_single_bit(chunk)) {
    section.fault("chunk", fmt::format("{} bytes are no power of two", chunk),
                  fmt::format("use \"{} B\" or \"{} B\"", std::bit_floor(chunk), std::bit_ceil(chunk)));
    return;
  }
  dataplane.chunk_bytes = chunk;
  const auto smallest = std::min_element(ports.begin(), ports.end(),
                                         [](const Port& a, const Port& b) { return a.mtu_bytes < b.mtu_bytes; });
  if (smallest == ports.end() || chunk + kOverheadBytes <= smallest->mtu_bytes) return;
  section.fault("chunk",
                fmt::format("{} bytes and {} of headers do not fit port {} with mtu {}", chunk, kOverheadBytes,
                            in_quotes(smallest->name), smallest->mtu_bytes),
                fmt::format("use \"{} B\" or less, or an mtu of {} or more",
                            std::bit_floor(smallest->mtu_bytes - kOverheadBytes), chunk + kOverheadBytes));
}

// The token file's text, or what is wrong with it.
struct TokenFile {
  std::string text;
  std::string what;
  std::string remedy;
};

TokenFile read_token_file(const std::string& path) {
  // Not blocking: a FIFO or device named here must not hang --check-config.
  const int fd = open(path.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC | O_NOCTTY);
  if (fd < 0) {
    const int error = errno;
    if (error == ENOENT || error == ENOTDIR) {
      return {{},
              fmt::format("there is no file {}", in_quotes(path)),
              "create it, for example: openssl rand -hex 24 | install -m 640 /dev/stdin FILE"};
    }
    return {{},
            fmt::format("cannot read {}: {}", in_quotes(path), std::strerror(error)),
            "let the gateway's user read it, and run this as that user"};
  }
  struct stat status {};
  TokenFile result;
  if (fstat(fd, &status) != 0 || !S_ISREG(status.st_mode)) {
    result.what = fmt::format("{} is no regular file", in_quotes(path));
    result.remedy = "name a file that holds the token";
  } else if ((status.st_mode & (S_IROTH | S_IWOTH)) != 0) {
    result.what = fmt::format("every user may read or change {}", in_quotes(path));
    result.remedy = fmt::format("run: chmod o-rwx {}", printable(path));
  } else {
    char buffer[kMaxTokenFileBytes];
    ssize_t got;
    while ((got = read(fd, buffer, sizeof buffer)) > 0 && result.text.size() <= kMaxTokenFileBytes) {
      result.text.append(buffer, static_cast<std::size_t>(got));
    }
    if (got < 0) {
      result.what = fmt::format("cannot read {}: {}", in_quotes(path), std::strerror(errno));
      result.remedy = "repair the file";
    }
  }
  close(fd);
  while (!result.text.empty() && (result.text.back() == '\n' || result.text.back() == '\r')) result.text.pop_back();
  if (result.what.empty() && result.text.empty()) {
    result.what = fmt::format("{} is empty", in_quotes(path));
    result.remedy = fmt::format("put the token into it, {} characters or more", kMinTokenBytes);
  }
  return result;
}

// The token itself appears in no message: they end up in logs and tickets.
void check_token(Section& section, std::string_view key, std::string token, Tenant& tenant) {
  // A token travels in an HTTP header.
  const bool printable_ascii = std::all_of(token.begin(), token.end(), [](char c) { return c > ' ' && c < 0x7F; });
  if (token.size() < kMinTokenBytes || token.size() > kMaxTokenBytes) {
    section.fault(key, fmt::format("the token has {} characters", token.size()),
                  fmt::format("use {} to {}, for example from: openssl rand -hex 24", kMinTokenBytes, kMaxTokenBytes));
  } else if (!printable_ascii) {
    section.fault(key, "the token has characters other than printable ASCII, or spaces",
                  "use letters and digits, for example from: openssl rand -hex 24");
  } else {
    tenant.token = std::move(token);
  }
}

void read_token(Section& section, const std::string& folder, Tenant& tenant) {
  const bool named = section.find("token_file") != nullptr;
  const bool written = section.find("token") != nullptr;
  if (named && written) {
    section.fault("token", "both token and token_file are given", "keep token_file only");
    return;
  }
  if (written) {
    if (auto token = section.text("token", "\"change-me-please\"", Need::kOptional)) {
      check_token(section, "token", std::move(*token), tenant);
    }
    return;
  }
  const auto file = section.text("token_file", "\"/etc/gradgate/tenant.token\"", Need::kRequired);
  if (!file) return;
  if (file->empty() || file->find('\0') != std::string::npos) {
    section.fault("token_file", fmt::format("{} is no path", in_quotes(*file)),
                  "write for example token_file = \"/etc/gradgate/tenant.token\"");
    return;
  }
  TokenFile content = read_token_file((std::filesystem::path(folder) / *file).string());
  if (!content.what.empty()) {
    section.fault("token_file", std::move(content.what), std::move(content.remedy));
    return;
  }
  check_token(section, "token_file", std::move(content.text), tenant);
}

}  // namespace

void read_dataplane(Section& root, Report& report, Site& site) {
  std::optional<Section> section = root.table("dataplane", Need::kOptional, "");
  Dataplane& dataplane = site.dataplane;
  if (!section) {
    // The default chunk has to fit the ports just as a written one.
    const toml::table none;
    Section absent(none, "dataplane", {}, report);
    read_chunk(absent, site.ports, dataplane);
    return;
  }
  read_lanes(*section, dataplane);
  read_lcores(*section, report, dataplane);
  if (const auto idle = section->choice("idle", {"poll", "sleep"})) {
    dataplane.idle = *idle == 0 ? Idle::kPoll : Idle::kSleep;
  }
  dataplane.udp_port =
      static_cast<std::uint16_t>(section->integer("udp_port", "9472", 1, 65535 - (GG_MAX_LANES - 1), Need::kOptional)
                                     .value_or(dataplane.udp_port));
  read_chunk(*section, site.ports, dataplane);
  dataplane.buffers_per_port =
      static_cast<unsigned>(section->integer("buffers", "16384", kMinBuffers, kMaxBuffers, Need::kOptional)
                                .value_or(dataplane.buffers_per_port));
  if (const auto hugepages = section->choice("hugepages", {"auto", "never"})) {
    dataplane.hugepages = *hugepages == 0 ? Hugepages::kAuto : Hugepages::kNever;
  }
  for (Item<std::string>& item : section->texts("eal", "[\"--log-level=lib.eal:warning\"]", kMaxEalArguments)) {
    if (item.value.empty() || item.value.find('\0') != std::string::npos) {
      report.fault(item.place, item.where, fmt::format("{} is no argument", in_quotes(item.value)), "remove it");
      continue;
    }
    dataplane.eal.push_back(std::move(item.value));
  }
  section->refuse_unknown();
}

void read_control(Section& root, Site& site) {
  std::optional<Section> section = root.table("control", Need::kRequired, "listen = \"127.0.0.1:9470\"");
  if (!section) return;
  if (const auto text = section->text("listen", "\"10.0.0.5:9470\"", Need::kRequired)) {
    const std::optional<SocketAddress> listen = parse_socket_address(*text);
    if (!listen) {
      section->fault("listen", fmt::format("{} is no numeric address with a TCP port", in_quotes(*text)),
                     "write for example \"10.0.0.5:9470\" or \"[2001:db8::5]:9470\"");
    } else {
      site.control.listen = *listen;
      if (!is_loopback(listen->address)) {
        section->warn(
            "listen",
            fmt::format("tenants' tokens travel unprotected to {}: there is no TLS in this version", format(*listen)),
            "keep it so only where the network of the workers and between the sites is closed");
      }
    }
  }
  section->refuse_in_this_version("tls", "TLS on the control connection is not in this version",
                                  "remove it, and let `listen` be reached from closed networks only");
  section->refuse_unknown();
}

void read_group(Section& root, Site& site) {
  std::optional<Section> section = root.table("group", Need::kOptional, "");
  if (!section) return;
  const auto read = [&](std::string_view key, std::string_view example, std::uint64_t& ns) {
    constexpr std::uint64_t kMinNs = 100'000'000;
    constexpr std::uint64_t kMaxNs = 86'400'000'000'000;
    ns = section->quantity(key, example, parse_duration, format_duration, kMinNs, kMaxNs, Need::kOptional).value_or(ns);
  };
  GroupDefaults& group = site.group;
  read("stall_report", "\"10 s\"", group.stall_report_ns);
  read("call_timeout", "\"10 min\"", group.call_timeout_ns);
  read("worker_timeout", "\"10 s\"", group.worker_timeout_ns);
  read("peer_timeout", "\"120 s\"", group.peer_timeout_ns);
  read("join_timeout", "\"5 min\"", group.join_timeout_ns);
  if (group.stall_report_ns >= group.call_timeout_ns) {
    section->fault("stall_report",
                   fmt::format("the report after {} would come when the call has failed after {}",
                               format_duration(group.stall_report_ns), format_duration(group.call_timeout_ns)),
                   "use a stall_report below call_timeout");
  }
  section->refuse_unknown();
}

void read_tenants(Section& root, Site& site, const std::string& folder) {
  std::map<std::string, std::string> tokens;
  std::set<std::string> names;
  for (Section& section : root.tables("tenant", kMaxTenants)) {
    Tenant tenant;
    if (const auto name = read_name(section, "name", "\"llm-team\"")) {
      tenant.name = *name;
      if (!names.insert(*name).second) {
        section.fault("name", fmt::format("there are two tenants {}", in_quotes(*name)),
                      "give each tenant its own name");
      }
    }
    read_token(section, folder, tenant);
    if (!tenant.token.empty()) {
      const auto [other, first] = tokens.emplace(tenant.token, tenant.name);
      if (!first) {
        section.fault(section.find("token") != nullptr ? "token" : "token_file",
                      fmt::format("is the token of tenant {} too", in_quotes(other->second)),
                      "give each tenant its own token");
      }
    }
    tenant.memory_bytes =
        section.quantity("memory", "\"2 GiB\"", parse_size, format_size, 1ULL << 20, 1ULL << 40, Need::kRequired)
            .value_or(0);
    section.refuse_unknown();
    site.tenants.push_back(std::move(tenant));
  }
}

void read_log(Section& root, Site& site) {
  std::optional<Section> section = root.table("log", Need::kOptional, "");
  if (!section) return;
  if (const auto level = section->choice("level", {"trace", "debug", "info", "warn", "error"})) {
    site.log.level = static_cast<LogLevel>(*level);
  }
  if (auto file = section->text("file", "\"/var/log/gradgate.log\"", Need::kOptional)) {
    if (file->empty() || file->find('\0') != std::string::npos) {
      section->fault("file", fmt::format("{} is no path", in_quotes(*file)),
                     "name a file, or remove the key for stderr");
    } else {
      site.log.file = std::move(*file);
    }
  }
  section->refuse_unknown();
}

}  // namespace gradgate::config
