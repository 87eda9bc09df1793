// Instructions of tensor cores and of asynchronous copies, from compute capability 8.0 on.
//
// Fragments, with g = lane / 4 and q = lane % 4: of a (16 x 16) register 0 holds (g, 2q..2q+1), register 1 row g + 8,
// registers 2 and 3 the same 8 columns on; of b (16 x 8) register 0 holds (2q..2q+1, g), register 1 rows 8 on; of
// d (16 x 8) values 0, 1 are (g, 2q..2q+1), values 2, 3 row g + 8.

__device__ __forceinline__ u32 shared_address(const void* p) { return u32(__cvta_generic_to_shared(p)); }

// Sixteen bytes into shared memory, zeros where not `inside`; complete after the wait for their group.
__device__ __forceinline__ void copy16(u32 to, const void* from, bool inside) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(inside ? 16 : 0) : "memory");
}
__device__ __forceinline__ void close_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }
// This thread's copies; those of others are seen after a barrier.
__device__ __forceinline__ void wait_copies() { asm volatile("cp.async.wait_group 0;" ::: "memory"); }

// One store each: the compiler splits those that it sees through.
__device__ __forceinline__ void store16(void* to, uint4 v) {
    asm volatile("st.global.v4.b32 [%0], {%1, %2, %3, %4};" ::"l"(to), "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w) : "memory");
}
__device__ __forceinline__ void store8(void* to, uint2 v) {
    asm volatile("st.global.v2.b32 [%0], {%1, %2};" ::"l"(to), "r"(v.x), "r"(v.y) : "memory");
}

// Four 8x8 matrices of halves: lane 8 i + j names the address of row j of matrix i, register i gets matrix i:
// (g, 2q..2q+1), or (2q..2q+1, g) where transposed.
template <bool TRANSPOSED> __device__ __forceinline__ void load_matrices(u32 (&r)[4], u32 at) {
    if constexpr (TRANSPOSED)
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                     : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(at) : "memory");
    else
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                     : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(at) : "memory");
}
// Two of them, from the addresses of lanes 0 to 15.
template <bool TRANSPOSED> __device__ __forceinline__ void load_matrices(u32 (&r)[2], u32 at) {
    if constexpr (TRANSPOSED)
        asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0, %1}, [%2];"
                     : "=r"(r[0]), "=r"(r[1]) : "r"(at) : "memory");
    else
        asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0, %1}, [%2];"
                     : "=r"(r[0]), "=r"(r[1]) : "r"(at) : "memory");
}

// Parts of the weights of one k step for all UN tiles of 8 outputs, STEP bytes apart.
template <bool DATA, int UN, int STEP> __device__ __forceinline__ void load_pairs(u32 (&b)[UN][2], u32 at) {
#pragma unroll
    for (int j = 0; j + 1 < UN; j += 2) {
        u32 r[4];
        load_matrices<DATA>(r, at + j * STEP);
        b[j][0] = r[0], b[j][1] = r[1], b[j + 1][0] = r[2], b[j + 1][1] = r[3];
    }
    if constexpr (UN % 2 == 1) load_matrices<DATA>(b[UN - 1], at + (UN - 1) * STEP);
}

// d += a b with 16 values, or 8, to sum over.
__device__ __forceinline__ void multiply(bf16, float (&d)[4], u32 a0, u32 a1, u32 a2, u32 a3, u32 b0, u32 b1) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]) : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}
__device__ __forceinline__ void multiply(fp16, float (&d)[4], u32 a0, u32 a1, u32 a2, u32 a3, u32 b0, u32 b1) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]) : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}
__device__ __forceinline__ void multiply(bf16, float (&d)[4], u32 a0, u32 a1, u32 b0) {
    asm("mma.sync.aligned.m16n8k8.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5}, {%6}, {%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]) : "r"(a0), "r"(a1), "r"(b0));
}
__device__ __forceinline__ void multiply(fp16, float (&d)[4], u32 a0, u32 a1, u32 b0) {
    asm("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5}, {%6}, {%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]) : "r"(a0), "r"(a1), "r"(b0));
}

// Two values in one register, the first in the lower half.
__device__ __forceinline__ u32 pack(bf16, float first, float second) {
    u32 r;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(second), "f"(first));
    return r;
}
__device__ __forceinline__ u32 pack(fp16, float first, float second) {
    u32 r;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(second), "f"(first));
    return r;
}
