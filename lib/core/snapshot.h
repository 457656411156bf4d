// SPDX-License-Identifier: Apache-2.0
// What control publishes to the lanes: immutable, except that each GroupLane and Link inside belongs to the one lane
// that uses it. A lane picks a snapshot up between bursts; control frees an old one when all lanes have moved on.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "core/group.h"
#include "core/link.h"
#include "core/rate.h"

namespace gradgate::core {

class GroupLane;

/// An adjacent node for one epoch; a new epoch is a new object in the same place of the table.
struct Neighbour {
  Neighbour(const LinkConfig& link, uint8_t lanes);
  ~Neighbour();

  bool peer = false;        ///< a gateway; else a worker
  uint16_t site = 0;        ///< peer: its site
  uint32_t local_link = 0;  ///< link id in packets to us: table index in the low 16 bits, random bits above
  uint64_t source = 0;      ///< registered source address tag; 0 = not compared
  bool trailer_crc = true;  ///< packets that we receive must end in a CRC32C
  std::shared_ptr<PeerBudget> budget;
  std::vector<std::unique_ptr<Link>> lanes;
};

/// A group with its slots, allocated by control when it forms.
struct Group {
  /// `low[l]`: first index that is not complete everywhere; config.start for a new group, the highest low heard for
  /// one that returns after a restart (DESIGN section 5, rule 7).
  Group(GroupConfig config, uint16_t site, const std::vector<uint32_t>& low);
  ~Group();

  const GroupConfig config;
  std::vector<std::unique_ptr<GroupLane>> lanes;
};

struct GroupEntry {
  std::shared_ptr<Group> group;
  std::vector<uint32_t> site_labels;  ///< peers' labels of the group, parallel to config.sites; 0 = not known yet
  std::shared_ptr<const std::string> error;  ///< set: the group has failed; the text goes to every worker
};

struct Snapshot {
  uint64_t generation = 0;
  uint16_t site = 0;
  std::vector<std::shared_ptr<Neighbour>> neighbours;  ///< by index; nullptr = free
  std::vector<GroupEntry> groups;                      ///< by label context; group == nullptr: none

  static constexpr uint32_t neighbour_of_link(uint32_t link) { return link & 0xFFFF; }
};

}  // namespace gradgate::core
