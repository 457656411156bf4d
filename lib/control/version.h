// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace gradgate::control {

/// The project's version, from the build.
constexpr const char* kVersion = GRADGATE_VERSION;

}  // namespace gradgate::control
