// SPDX-License-Identifier: Apache-2.0
// Internal to lib/config: typed reading of one TOML table. Every refusal is reported and reading goes on, so that a
// file shows all its faults in one go.
#pragma once

#include <toml++/toml.h>

#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "config/quantity.h"
#include "config/site.h"

namespace gradgate::config {

struct Place {
  unsigned line = 1;
  unsigned column = 1;
};

Place place_of(const toml::node& node);

struct Report {
  std::vector<Fault> faults;
  std::vector<Fault> warnings;
  void fault(Place place, std::string where, std::string what, std::string remedy);
  void warn(Place place, std::string where, std::string what, std::string remedy);
};

enum class Need { kOptional, kRequired };

// One element of a list of values.
template <typename T>
struct Item {
  T value;
  Place place;
  std::string where;
};

class Section {
 public:
  // `path` is empty for the file's top level.
  Section(const toml::table& table, std::string path, Place place, Report& report)
      : table_(table), path_(std::move(path)), place_(place), report_(report) {}

  // The key's value or nullptr; from then on the key is known.
  const toml::node* find(std::string_view key);

  // Readers: nullopt (or an empty list) where the key is absent, or refused with a fault. `example` is a right value as
  // TOML, for the remedies.
  std::optional<std::string> text(std::string_view key, std::string_view example, Need need);
  std::optional<std::int64_t> integer(std::string_view key, std::string_view example, std::int64_t min,
                                      std::int64_t max, Need need);
  std::optional<bool> boolean(std::string_view key);
  // Index into `choices`.
  std::optional<std::size_t> choice(std::string_view key, std::initializer_list<std::string_view> choices);
  // In the parser's base unit.
  std::optional<std::uint64_t> quantity(std::string_view key, std::string_view example,
                                        Quantity (*parse)(std::string_view), std::string (*format)(std::uint64_t),
                                        std::uint64_t min, std::uint64_t max, Need need);
  std::vector<Item<std::string>> texts(std::string_view key, std::string_view example, std::size_t max_count);
  std::vector<Item<std::int64_t>> integers(std::string_view key, std::string_view example, std::size_t max_count);
  // [key] and [[key]]
  std::optional<Section> table(std::string_view key, Need need, std::string_view example);
  std::vector<Section> tables(std::string_view key, std::size_t max_count);

  // A key of the design that this version does not have: a fault where it is present.
  void refuse_in_this_version(std::string_view key, std::string what, std::string remedy);

  // At the key's value, or at the table where the key is absent.
  void fault(std::string_view key, std::string what, std::string remedy);
  void warn(std::string_view key, std::string what, std::string remedy);

  // To be called last: a fault for every key that no reader asked for.
  void refuse_unknown();

 private:
  void wrong_type(std::string_view key, const toml::node& node, std::string_view expected, std::string_view example);
  template <typename T>
  std::vector<Item<T>> list(std::string_view key, std::string_view example, std::string_view expected,
                            std::size_t max_count);
  std::string where(std::string_view key) const;
  Place place(std::string_view key) const;

  const toml::table& table_;
  std::string path_;
  Place place_;
  Report& report_;
  std::vector<std::string> known_;
  std::vector<std::string> refused_;  // refused already, and not to be suggested
};

}  // namespace gradgate::config
