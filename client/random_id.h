// Ids that no two clients share.
#ifndef CCS_CLIENT_RANDOM_ID_H_
#define CCS_CLIENT_RANDOM_ID_H_

#include <cstdint>
#include <random>

namespace ccs::client {

inline uint64_t RandomId() {
  std::random_device device;
  return (uint64_t{device()} << 32) | device();
}

}  // namespace ccs::client

#endif  // CCS_CLIENT_RANDOM_ID_H_
