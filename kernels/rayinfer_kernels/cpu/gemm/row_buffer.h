// Memory that grows to what has been needed and is then used again and again.
#pragma once

#include <cstdlib>
#include <new>

#include "gemm/encoded_rows.h"

namespace rayinfer {

class RowBuffer {
  public:
    RowBuffer() = default;
    RowBuffer(const RowBuffer&) = delete;
    RowBuffer& operator=(const RowBuffer&) = delete;
    ~RowBuffer() { std::free(data_); }

    // At least so many bytes, aligned for encoded rows; what was in it is lost when it grows.
    void* at_least(int64_t bytes) {
        if (bytes > size_) {
            std::free(data_);
            size_ = rounded_up(bytes, 4096);
            data_ = std::aligned_alloc(4096, (size_t)size_);
            if (data_ == nullptr) std::abort();
        }
        return data_;
    }

    template <class T>
    T* rows(int64_t num_rows, int64_t width) {
        return (T*)at_least(num_rows * width * (int64_t)sizeof(T));
    }

  private:
    void* data_ = nullptr;
    int64_t size_ = 0;
};

}  // namespace rayinfer
