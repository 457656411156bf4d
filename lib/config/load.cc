// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <memory>
#include <tuple>

#include "config/quote.h"
#include "config/read_site.h"
#include "config/scan.h"

namespace gradgate::config {
namespace {

constexpr std::size_t kMaxFileBytes = 1 << 20;

Result one_fault(Fault fault) {
  Result result;
  result.faults.push_back(std::move(fault));
  return result;
}

void sort_by_line(std::vector<Fault>& faults) {
  std::stable_sort(faults.begin(), faults.end(), [](const Fault& a, const Fault& b) {
    return std::tie(a.line, a.column) < std::tie(b.line, b.column);
  });
}

void read_site(Section& root, Report& report, const std::string& folder, Site& site) {
  read_identity(root, site);
  read_ports(root, report, site);
  read_peers(root, site);
  root.refuse_in_this_version("forward", "forwarding for other sites is not in this version",
                              "remove it, and route between the sites in the network");
  read_dataplane(root, report, site);
  read_control(root, site);
  read_group(root, site);
  read_tenants(root, site, folder);
  read_log(root, site);
  root.refuse_unknown();
  if (root.find("port") == nullptr) {
    root.fault("port", "there is no port", "add a [[port]] with name and device");
  }
  if (root.find("tenant") == nullptr) {
    root.warn("tenant", "there is no tenant: no worker can join a group", "add a [[tenant]]");
  }
}

}  // namespace

Result load_text(std::string_view text, const std::string& name) {
  if (text.size() > kMaxFileBytes) {
    return one_fault(
        {0, 0, "", fmt::format("the file is larger than {} bytes", kMaxFileBytes), "is it a site's file?"});
  }
  if (std::optional<Fault> fault = scan(text)) return one_fault(std::move(*fault));
  const toml::parse_result parsed = toml::parse(text);
  if (!parsed) {
    const toml::parse_error& error = parsed.error();
    return one_fault({error.source().begin.line, error.source().begin.column, "", std::string(error.description()),
                      "correct the TOML here; strings, also those with units, stand in double quotes"});
  }
  Report report;
  Site site;
  Section root(parsed.table(), "", {}, report);
  read_site(root, report, std::filesystem::path(name).parent_path().string(), site);
  Result result{std::nullopt, std::move(report.faults), std::move(report.warnings)};
  sort_by_line(result.faults);
  sort_by_line(result.warnings);
  if (result.faults.empty()) result.site = std::move(site);
  return result;
}

Result load_file(const std::string& path) {
  const auto close = [](std::FILE* file) { std::fclose(file); };
  const std::unique_ptr<std::FILE, decltype(close)> file(std::fopen(path.c_str(), "rbe"), close);
  std::string text;
  bool failed = file == nullptr;
  if (!failed) {
    char buffer[65536];
    std::size_t got;
    while (text.size() <= kMaxFileBytes && (got = std::fread(buffer, 1, sizeof buffer, file.get())) > 0) {
      text.append(buffer, got);
    }
    failed = std::ferror(file.get()) != 0;
  }
  if (failed) {
    return one_fault({0, 0, "", fmt::format("cannot read the file: {}", std::strerror(errno)),
                      "name a site's file that this user may read"});
  }
  return load_text(text, path);
}

std::string to_text(const std::string& file, const Fault& fault) {
  std::string text = printable(file);
  if (fault.line != 0) text += fmt::format(":{}:{}", fault.line, fault.column);
  if (!fault.where.empty()) text += fmt::format(": {}", printable(fault.where));
  return text + fmt::format(": {}: {}", printable(fault.what), printable(fault.remedy));
}

std::string_view modality_name(gg_modality modality) {
  return modality == GG_MODALITY_UDP4 ? "udp4" : "ethernet";
}

}  // namespace gradgate::config
