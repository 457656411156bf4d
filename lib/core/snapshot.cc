// SPDX-License-Identifier: Apache-2.0
#include "core/snapshot.h"

#include "core/group_lane.h"

namespace gradgate::core {

Neighbour::Neighbour(const LinkConfig& link, uint8_t lane_count) {
  for (uint8_t lane = 0; lane < lane_count; ++lane) {
    LinkConfig config = link;
    config.lane = lane;
    lanes.push_back(std::make_unique<Link>(config));
  }
}

Neighbour::~Neighbour() = default;

Group::Group(GroupConfig group, uint16_t site, const std::vector<uint32_t>& low) : config(std::move(group)) {
  for (uint8_t lane = 0; lane < config.lanes; ++lane)
    lanes.push_back(std::make_unique<GroupLane>(config, lane, site, low[lane]));
}

Group::~Group() = default;

}  // namespace gradgate::core
