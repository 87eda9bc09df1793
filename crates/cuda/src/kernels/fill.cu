// y = 0 over a channel range. Writes its bytes: 105 MB in 22 us at 4.8 TB/s.

struct Args {
    View y;
    u32 bytes_per_element;
};

extern "C" __global__ void fill_zero(Args a) {
    u64 packs = u64(a.y.c) * a.bytes_per_element / 16;
    u64 total = u64(a.y.n) * a.y.h * a.y.w * packs;
    u64 pitch = u64(a.y.pitch) * a.bytes_per_element;
    for (u64 i = u64(blockIdx.x) * blockDim.x + threadIdx.x; i < total; i += u64(gridDim.x) * blockDim.x) {
        u64 pixel = i / packs, pack = i % packs;
        *reinterpret_cast<uint4*>(a.y.at + pixel * pitch + pack * 16) = make_uint4(0, 0, 0, 0);
    }
}
