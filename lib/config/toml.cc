// SPDX-License-Identifier: Apache-2.0
// toml++'s code, compiled once: the other files see its declarations only (TOML_HEADER_ONLY=0 in meson.build). Debian's
// libtomlplusplus is not used because it is built to throw.
#define TOML_IMPLEMENTATION
#include <toml++/toml.h>
