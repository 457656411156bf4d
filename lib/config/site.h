// SPDX-License-Identifier: Apache-2.0
// A site's file (DESIGN section 11): TOML to validated structs. No interface, socket or hugepage is looked at, so that
// a file can be checked without root and on another machine; the data plane's preflight looks at the machine. The only
// other files read are the tenants' token files.
//
// Keys, as `key  unit or form  (default; range)`. "required" keys have no default. Lengths of time, rates and sizes are
// strings with a unit, see quantity.h. conf/*.toml show every key in use.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "config/address.h"
#include "wire/gg_wire.h"

namespace gradgate::config {

// `device` of a port.
struct PortDevice {
  enum class Kind {
    kInterface,  // the kernel's interface through the AF_XDP PMD: 1..15 of A-Z a-z 0-9 _ . -
    kPci,        // dddd:bb:dd.f, bound to vfio-pci; hexadecimal digits become lower case
    kVdev,       // DPDK virtual device, "net_NAME[,key=value…]"
  };
  Kind kind = Kind::kInterface;
  std::string text;
};

// [[port]], 1..32 of them (DPDK's RTE_MAX_ETHPORTS)
struct Port {
  std::string name;   // name      1..32 of A-Z a-z 0-9 _ . - (required; unique)
  PortDevice device;  // device    see PortDevice (required; each device once)
  // mtu       bytes of an IP packet (1500; 576..9000, on an interface ..3498: native XDP in one 4 KiB page)
  unsigned mtu_bytes = 1500;
  // address   list of "a.b.c.d/n" or "v6/n" (empty; at most 16; subnets of two ports must not overlap)
  std::vector<Cidr> addresses;
  // next_hop  IPv4 router in one of the port's subnets (none; only for PCI and vdev, elsewhere the kernel routes)
  std::optional<Ip4> next_hop;
};

// [[peer]], the gateway of another site
struct Peer {
  std::string site;      // site      the other site's name (required; unique, not this site's)
  std::uint16_t id = 0;  // id        the other site's id (required; 1..4095, unique, not this site's)
  std::size_t port = 0;  // port      name of a [[port]] (required); here its index in Site::ports
  gg_modality modality = GG_MODALITY_UDP4;  // modality  "udp4" or "ethernet" (required)
  // address   IPv4 address for udp4, MAC for ethernet (required; unique on its port). udp4 needs an IPv4 address on the
  //           port, and on PCI and vdev ports a subnet or next_hop that reaches the peer.
  std::variant<Ip4, Mac> address;
  std::uint64_t rate_bits_per_second = 0;  // rate      (required; 100 kbit/s..1000 Gbit/s) what the link may be sent
  std::uint64_t rtt_ns = 0;                // rtt       (required; 1 us..10 s) round-trip time of the empty link
  HostPort control;      // control   "host:port" of its control listener, IPv6 as [v6]:port (required; unique)
  bool trusted = false;  // trusted   bool (false, which this version refuses: it does not encrypt peer links)
};

enum class Idle { kPoll, kSleep };
enum class Hugepages { kAuto, kNever };

// [dataplane] (optional)
struct Dataplane {
  // lcores      list of CPU numbers (empty: one lcore, not pinned; 0..1023, each once, not more than lanes)
  std::vector<unsigned> lcores;
  unsigned lanes = 4;        // lanes       (4; power of two, 1..64) the same at all sites
  Idle idle = Idle::kSleep;  // idle        "poll" or "sleep" ("sleep")
  // udp_port    UDP port of lane 0; lane n is port + n (9472; 1..65472) the same at all sites
  std::uint16_t udp_port = GG_DEFAULT_UDP_PORT;
  // chunk       size ("1024 B"; power of two, 256..8192 bytes; with all headers at most the smallest port's mtu)
  unsigned chunk_bytes = 1024;
  unsigned buffers_per_port = 16384;       // buffers     packet buffers per port (16384; 8192..4194304)
  Hugepages hugepages = Hugepages::kAuto;  // hugepages   "auto": where there are some; "never" ("auto")
  std::vector<std::string> eal;            // eal         list of further arguments for DPDK's EAL (empty)
};

// [control] (required)
struct Control {
  SocketAddress listen;  // listen   "a.b.c.d:port" or "[v6]:port" (required) for workers, peers and the HTTP API
};

// [group] (optional): what a group uses that does not ask for something else. All 100 ms..24 h.
struct GroupDefaults {
  std::uint64_t stall_report_ns = 10'000'000'000;   // stall_report    ("10 s"; below call_timeout) a missing rank named
  std::uint64_t call_timeout_ns = 600'000'000'000;  // call_timeout    ("10 min") the group fails
  std::uint64_t worker_timeout_ns = 10'000'000'000;  // worker_timeout  ("10 s") without a sign of life
  std::uint64_t peer_timeout_ns = 120'000'000'000;   // peer_timeout    ("120 s") without a sign of life
  std::uint64_t join_timeout_ns = 300'000'000'000;   // join_timeout    ("5 min") from the first member to the last
};

// [[tenant]]
struct Tenant {
  std::string name;  // name        1..32 of A-Z a-z 0-9 _ . - (required; unique)
  // token_file  path, from the site's file's folder where relative; not readable by every user; a newline at its end
  //             is not part of the token
  // token       the token itself. Exactly one of both; 8..512 printable ASCII characters without spaces; each
  //             tenant its own
  std::string token;
  std::uint64_t memory_bytes = 0;  // memory      size (required; 1 MiB..1024 GiB) for the slots of all its groups
};

enum class LogLevel { kTrace, kDebug, kInfo, kWarn, kError };

// [log] (optional)
struct Log {
  LogLevel level = LogLevel::kInfo;  // level  "trace", "debug", "info", "warn" or "error" ("info")
  std::string file;                  // file   path (none: standard error); empty here means standard error
};

struct Site {
  std::string name;      // [site] name  1..32 of a-z 0-9 - (required)
  std::uint16_t id = 0;  // [site] id    (required; 1..4095) the site's part of every label
  std::vector<Port> ports;
  std::vector<Peer> peers;
  Dataplane dataplane;
  Control control;
  GroupDefaults group;
  std::vector<Tenant> tenants;
  Log log;
};

struct Fault {
  unsigned line = 0;    // from 1; 0 where the file as a whole is meant
  unsigned column = 0;  // from 1
  std::string where;    // the key, elements of lists counted from 0 as in JSON: "port[1].mtu"; empty for syntax errors
  std::string what;     // what is wrong
  std::string remedy;   // what would be right
};

struct Result {
  std::optional<Site> site;     // present exactly where there are no faults
  std::vector<Fault> faults;    // all of the file, by line; a TOML syntax error is one and ends there
  std::vector<Fault> warnings;  // accepted, but the operator should know; by line
};

// Neither throws on any content of the file. Limits: 1 MiB of text.
Result load_file(const std::string& path);
// `name` is the path that relative token files start from.
Result load_text(std::string_view text, const std::string& name);

// One line: "FILE:12:8: port[1].mtu: 9000 is more than XDP carries on an interface: use 3498 or less"
std::string to_text(const std::string& file, const Fault& fault);

// The modality's name in files, metrics and messages: "udp4", "ethernet".
std::string_view modality_name(gg_modality modality);

}  // namespace gradgate::config
