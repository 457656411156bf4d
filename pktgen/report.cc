// SPDX-License-Identifier: Apache-2.0
#include "pktgen/report.h"

#include <algorithm>
#include <cstdio>
#include <iostream>
#include <nlohmann/json.hpp>

#include "wire/gg_wire.h"

namespace gradgate::pktgen {
namespace {

double microseconds(const std::vector<uint64_t>& sorted_ns, double quantile) {
  if (sorted_ns.empty()) return 0;
  const size_t last = sorted_ns.size() - 1;
  return static_cast<double>(sorted_ns[static_cast<size_t>(quantile * static_cast<double>(last) + 0.5)]) / 1e3;
}

}  // namespace

void print_report(const Options& o, Totals& t) {
  std::sort(t.latencies_ns.begin(), t.latencies_ns.end());
  const auto rate = [&](double amount) { return t.seconds > 0 ? amount / t.seconds : 0.0; };
  const auto gbit = [&](uint64_t bytes) { return rate(static_cast<double>(bytes) * 8 / 1e9); };
  const double call_bytes = static_cast<double>(o.elements) * gg_dtype_bytes(o.dtype);
  const double calls_per_worker = static_cast<double>(t.calls) / (o.groups * o.workers);
  // The rate at which one rank's gradients get through, summed over the groups.
  const double goodput = rate(call_bytes * calls_per_worker * o.groups * 8 / 1e9);
  const double cpu = rate(t.cpu_seconds);
  const double p50 = microseconds(t.latencies_ns, 0.5), p90 = microseconds(t.latencies_ns, 0.9),
               p99 = microseconds(t.latencies_ns, 0.99), worst = microseconds(t.latencies_ns, 1);
  if (o.json) {
    const nlohmann::ordered_json report = {
        {"kind", o.kind_name},
        {"dtype", o.dtype_name},
        {"op", o.op_name},
        {"elements", o.elements},
        {"groups", o.groups},
        {"workers", o.workers},
        {"first_rank", o.first_rank},
        {"size", o.size},
        {"seed", o.seed},
        {"seconds", t.seconds},
        {"calls", t.calls},
        {"chunks", t.chunks},
        {"chunks_per_second", rate(static_cast<double>(t.chunks))},
        {"goodput_gbit_per_second", goodput},
        {"packets_sent", t.packets_sent},
        {"packets_received", t.packets_received},
        {"packets_sent_per_second", rate(static_cast<double>(t.packets_sent))},
        {"packets_received_per_second", rate(static_cast<double>(t.packets_received))},
        {"sent_gbit_per_second", gbit(t.bytes_sent)},
        {"received_gbit_per_second", gbit(t.bytes_received)},
        {"latency_us", {{"p50", p50}, {"p90", p90}, {"p99", p99}, {"max", worst}}},
        {"packets_lost", t.packets_lost},
        {"frames_resent", t.frames_resent},
        {"packets_dropped", t.packets_dropped},
        {"gateway_restarts", t.gateway_restarts},
        {"cpu_cores_used", cpu},
        {"elements_checked", t.elements_checked},
        {"elements_wrong", t.elements_wrong},
        {"first_wrong", t.first_wrong},
        {"failure", t.failure},
    };
    std::cout << report.dump() << std::endl;
    return;
  }
  printf("%-22s %s %s%s%s, %u elements, %u groups x %u of %u ranks, seed %llu\n", "calls", o.kind_name.c_str(),
         o.dtype_name.c_str(), o.op == GG_OP_NONE ? "" : " ", o.op == GG_OP_NONE ? "" : o.op_name.c_str(), o.elements,
         o.groups, o.workers, o.size, static_cast<unsigned long long>(o.seed));
  printf("%-22s %.3f s, %llu calls of workers, %llu chunks, %.2f cores used here\n", "ran", t.seconds,
         static_cast<unsigned long long>(t.calls), static_cast<unsigned long long>(t.chunks), cpu);
  printf("%-22s %.3f Gbit/s per rank, %.0f chunks/s in all\n", "goodput", goodput, rate(static_cast<double>(t.chunks)));
  printf("%-22s %12.0f packets/s %10.3f Gbit/s\n", "sent", rate(static_cast<double>(t.packets_sent)),
         gbit(t.bytes_sent));
  printf("%-22s %12.0f packets/s %10.3f Gbit/s\n", "received", rate(static_cast<double>(t.packets_received)),
         gbit(t.bytes_received));
  printf("%-22s p50 %.0f us, p90 %.0f us, p99 %.0f us, max %.0f us\n", "latency of a call", p50, p90, p99, worst);
  printf("%-22s %llu packets lost, %llu frames sent again, %llu packets not accepted, %llu gateway restarts\n",
         "losses", static_cast<unsigned long long>(t.packets_lost), static_cast<unsigned long long>(t.frames_resent),
         static_cast<unsigned long long>(t.packets_dropped), static_cast<unsigned long long>(t.gateway_restarts));
  printf("%-22s %llu elements, %llu wrong\n", "checked", static_cast<unsigned long long>(t.elements_checked),
         static_cast<unsigned long long>(t.elements_wrong));
  if (!t.first_wrong.empty()) printf("%-22s %s\n", "first wrong element", t.first_wrong.c_str());
  fflush(stdout);
}

}  // namespace gradgate::pktgen
