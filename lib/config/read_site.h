// SPDX-License-Identifier: Apache-2.0
// Internal to lib/config: one reader for each part of a site's file. A part that is refused keeps its defaults, so that
// the parts after it can still be checked.
#pragma once

#include <string>
#include <vector>

#include "config/section.h"
#include "config/site.h"

namespace gradgate::config {

void read_identity(Section& root, Site& site);
void read_ports(Section& root, Report& report, Site& site);
void read_peers(Section& root, Site& site);                      // after read_identity and read_ports
void read_dataplane(Section& root, Report& report, Site& site);  // after read_ports
void read_control(Section& root, Site& site);
void read_group(Section& root, Site& site);
void read_tenants(Section& root, Site& site, const std::string& folder);  // folder: of relative token files
void read_log(Section& root, Site& site);

// A name of 1..32 of A-Z a-z 0-9 _ . -, or a fault.
std::optional<std::string> read_name(Section& section, std::string_view key, std::string_view example);

}  // namespace gradgate::config
