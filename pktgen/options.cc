// SPDX-License-Identifier: Apache-2.0
#include "pktgen/options.h"

#include <CLI/CLI.hpp>
#include <bit>
#include <iostream>
#include <map>

#include "pktgen/pattern.h"
#include "wire/gg_wire.h"

namespace gradgate::pktgen {
namespace {

constexpr const char* kDescription =
    "gradgate-pktgen: emulates workers of training jobs and checks every result element.\n"
    "\n"
    "One process emulates --workers ranks of each of --groups groups over UDP sockets, with the worker's own protocol\n"
    "code: it joins like any worker, so the gateway needs no preparation but the tenant. Ranks elsewhere (another\n"
    "process at another site) complete the group: give every process the same --job, --size, --seed and call options,\n"
    "and its own --first-rank. Payload is a function of seed, group, rank, call and element, and small integers, so\n"
    "that sums are exact in every dtype and each process knows every result.";

constexpr const char* kFooter =
    "examples:\n"
    "  one site, four ranks, a hundred 4 MiB all-reduces:\n"
    "    gradgate-pktgen --gateway 10.1.0.1:9470 --tenant lab --token secret --workers 4\n"
    "  two sites of two ranks, ten seconds; one process at each site:\n"
    "    site a: gradgate-pktgen --gateway 10.1.0.1:9470 --tenant lab --token secret --workers 2 --size 4 "
    "--duration 10\n"
    "    site b: gradgate-pktgen --gateway 10.2.0.1:9470 --tenant lab --token secret --workers 2 --size 4 "
    "--first-rank 2 --duration 10\n"
    "\n"
    "exit status: 0 every element was right; 1 an element was wrong; 2 usage; 3 could not join; 4 a group failed";

const std::map<std::string, uint8_t> kKinds = {{"all_reduce", GG_ALL_REDUCE}, {"reduce_scatter", GG_REDUCE_SCATTER},
                                               {"all_gather", GG_ALL_GATHER}, {"broadcast", GG_BROADCAST},
                                               {"reduce", GG_REDUCE},         {"barrier", GG_BARRIER}};
const std::map<std::string, uint8_t> kDtypes = {{"float32", GG_FLOAT32},
                                                {"float16", GG_FLOAT16},
                                                {"bfloat16", GG_BFLOAT16},
                                                {"int32", GG_INT32},
                                                {"bytes", GG_BYTES}};

/// Empty, or what is wrong with the combination.
std::string fault(Options& o) {
  o.kind = kKinds.at(o.kind_name);
  o.dtype = kDtypes.at(o.dtype_name);
  if (o.size == 0) o.size = o.workers;
  if (o.size > UINT16_MAX) return "--size " + std::to_string(o.size) + " is above 65535";
  if (o.first_rank + uint64_t{o.workers} > o.size) {
    return "--first-rank " + std::to_string(o.first_rank) + " and --workers " + std::to_string(o.workers) +
           " go beyond the last rank, " + std::to_string(o.size - 1) + " (--size)";
  }
  const bool sums = o.kind == GG_ALL_REDUCE || o.kind == GG_REDUCE_SCATTER || o.kind == GG_REDUCE;
  o.op = !sums ? uint16_t{GG_OP_NONE} : o.op_name == "average" ? uint16_t{GG_AVERAGE} : uint16_t{GG_SUM};
  if (sums && o.dtype == GG_BYTES) return "--dtype bytes cannot be summed: it is for all_gather and broadcast";
  if (o.kind == GG_BARRIER) {
    o.elements = 0;
    o.dtype = GG_BYTES;
  }
  if ((o.kind == GG_REDUCE_SCATTER || o.kind == GG_ALL_GATHER) && o.elements % o.size != 0)
    return "--elements " + std::to_string(o.elements) + " must be a multiple of --size " + std::to_string(o.size);
  if (o.op == GG_AVERAGE && !std::has_single_bit(o.size))
    return "--op average needs a power of two as --size, so that the averages are exact and can be compared";
  if (sums && Pattern::magnitude(o.dtype, o.op, o.size) == 0) {
    return "--dtype " + o.dtype_name + " with --op " + o.op_name + " has no exact results to compare with for --size " +
           std::to_string(o.size) + ": use fewer ranks, or float32 or int32";
  }
  if (o.calls == 0 && o.duration_s == 0) o.calls = 100;
  return {};
}

template <typename Map>
std::vector<std::string> names(const Map& map) {
  std::vector<std::string> result;
  for (const auto& [name, value] : map) result.push_back(name);
  return result;
}

}  // namespace

int parse_options(int argc, char** argv, Options& o) {
  CLI::App app{kDescription, "gradgate-pktgen"};
  app.footer(kFooter);
  app.add_option("--gateway", o.gateway, "control address of the gateway, HOST:PORT")->capture_default_str();
  app.add_option("--tenant", o.tenant, "name of the tenant at the gateway")->required();
  app.add_option("--token", o.token, "the tenant's token")->required();
  app.add_option("--job", o.job, "name of the job")->capture_default_str();
  app.add_option("--group", o.group, "prefix of the groups' names")->capture_default_str();
  app.add_option("--address", o.address,
                 "own IPv4 address, or interface, for gradients (default: the one that reaches the gateway)");
  app.add_option("--groups", o.groups, "groups to run at once")->capture_default_str()->check(CLI::Range(1u, 1000u));
  app.add_option("--workers", o.workers, "ranks to emulate here, of each group")
      ->capture_default_str()
      ->check(CLI::Range(1u, 1000u));
  app.add_option("--first-rank", o.first_rank, "lowest rank here")->capture_default_str();
  app.add_option("--size", o.size, "ranks of a group in all processes (default: --workers)");
  app.add_option("--kind", o.kind_name, "collective; the root of broadcast and reduce is the call's number modulo size")
      ->capture_default_str()
      ->check(CLI::IsMember(names(kKinds)));
  app.add_option("--dtype", o.dtype_name, "element type")->capture_default_str()->check(CLI::IsMember(names(kDtypes)));
  app.add_option("--op", o.op_name, "operation of the summing kinds")
      ->capture_default_str()
      ->check(CLI::IsMember({"sum", "average"}));
  app.add_option("--elements", o.elements,
                 "elements of a call (reduce_scatter: of the input, all_gather: of the output)")
      ->capture_default_str();
  app.add_option("--calls", o.calls, "stop after so many calls of each group (default without --duration: 100)");
  app.add_option("--duration", o.duration_s, "stop after so many seconds; rank 0 decides by a broadcast of one byte")
      ->check(CLI::Range(0.0, 1e6));
  app.add_option("--pipeline", o.pipeline, "calls that a worker has outstanding")
      ->capture_default_str()
      ->check(CLI::Range(1u, 64u));
  app.add_option("--seed", o.seed, "seed of the payload")->capture_default_str();
  app.add_option("--join-timeout", o.join_timeout_s, "seconds to wait for the other ranks")
      ->capture_default_str()
      ->check(CLI::Range(1u, 86400u));
  app.add_flag("--json", o.json, "print the report as one JSON object instead of a table");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& e) {
    return app.exit(e) == 0 ? 0 : 2;
  }
  if (const std::string text = fault(o); !text.empty()) {
    std::cerr << "gradgate-pktgen: " << text << "\n";
    return 2;
  }
  return -1;
}

}  // namespace gradgate::pktgen
