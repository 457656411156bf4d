// SPDX-License-Identifier: Apache-2.0
// The fake gateway as a program, for the Python tests: prints its address, ends when its input ends.
#include <unistd.h>

#include <cstdlib>
#include <iostream>

#include "tests/unit/client_fake_gateway.h"

int main(int argc, char** argv) {
  if (argc != 3) {
    std::cerr << "usage: client_fake_gateway SIZE LOSS\n";
    return 2;
  }
  gradgate::test::FakeGateway gateway({.size = static_cast<uint16_t>(std::atoi(argv[1])), .loss = std::atof(argv[2])});
  std::cout << gateway.address() << std::endl;
  char byte;
  while (read(STDIN_FILENO, &byte, 1) > 0) {
  }
  return 0;
}
