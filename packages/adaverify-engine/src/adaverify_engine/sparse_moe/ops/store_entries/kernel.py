"""One launch a layer: norms, rotation, quantisation and the scatter into both caches."""

import triton
import triton.language as tl


@triton.jit
def _norm(sum_of_squares, width, EPSILON: tl.constexpr):
    return 1.0 / tl.sqrt(sum_of_squares / width + EPSILON)


@triton.jit
def store_entries_kernel(
    mixed,  # [T, M], row stride mixed_stride: query rank | latent | rope | index key | rest
    cell,  # int64 [T], -1 where no entry is complete
    position,  # int32 [T]
    cosine,  # float32 [L, ROPE / 2]
    sine,  # float32 [L, ROPE / 2]
    latents,  # [cells, LATENT + ROPE]
    codes,  # float8 e4m3 [pages x PAGE x (INDEX + 4)]: the index pool
    scales,  # float32 [pages x PAGE x (INDEX + 4) / 4]: the same bytes
    base,  # [T, RANK]
    own,  # [T, LATENT + ROPE]
    mixed_stride,
    RANK: tl.constexpr,
    BLOCK_RANK: tl.constexpr,
    LATENT: tl.constexpr,
    ROPE: tl.constexpr,
    INDEX: tl.constexpr,
    BLOCK_PLAIN: tl.constexpr,
    PAGE: tl.constexpr,
    EPSILON: tl.constexpr,
    E4M3_MAX: tl.constexpr,
    AMAX_FLOOR: tl.constexpr,
):
    """Serve one token; grid (T,)."""
    HALF: tl.constexpr = ROPE // 2
    WIDE: tl.constexpr = LATENT + ROPE
    PLAIN: tl.constexpr = INDEX - ROPE
    token = tl.program_id(0).to(tl.int64)
    row = mixed + token * mixed_stride
    at = tl.load(position + token).to(tl.int64)
    place = tl.load(cell + token)
    store = place >= 0
    half = tl.arange(0, HALF)
    cos = tl.load(cosine + at * HALF + half)
    sin = tl.load(sine + at * HALF + half)

    rank = tl.arange(0, BLOCK_RANK)
    q = tl.load(row + rank, mask=rank < RANK, other=0.0).to(tl.float32)
    q = q * _norm(tl.sum(q * q, 0), RANK, EPSILON)
    tl.store(base + token * RANK + rank, q.to(base.dtype.element_ty), mask=rank < RANK)

    lane = tl.arange(0, LATENT)
    v = tl.load(row + RANK + lane).to(tl.float32)
    v = (v * _norm(tl.sum(v * v, 0), LATENT, EPSILON)).to(own.dtype.element_ty)
    left = tl.load(row + RANK + LATENT + half).to(tl.float32)
    right = tl.load(row + RANK + LATENT + HALF + half).to(tl.float32)
    turned = (left * cos - right * sin).to(own.dtype.element_ty)
    turned_too = (left * sin + right * cos).to(own.dtype.element_ty)
    mine = own + token * WIDE
    tl.store(mine + lane, v)
    tl.store(mine + LATENT + half, turned)
    tl.store(mine + LATENT + HALF + half, turned_too)
    entry = latents + tl.maximum(place, 0) * WIDE
    tl.store(entry + lane, v, mask=store & (lane >= 0))
    tl.store(entry + LATENT + half, turned, mask=store & (half >= 0))
    tl.store(entry + LATENT + HALF + half, turned_too, mask=store & (half >= 0))

    plain = tl.arange(0, BLOCK_PLAIN)
    key = row + RANK + WIDE
    k = tl.load(key + plain, mask=plain < PLAIN, other=0.0).to(tl.float32)
    left = tl.load(key + PLAIN + half).to(tl.float32)
    right = tl.load(key + PLAIN + HALF + half).to(tl.float32)
    factor = _norm(tl.sum(k * k, 0) + tl.sum(left * left, 0) + tl.sum(right * right, 0), INDEX, EPSILON)
    k, left, right = k * factor, left * factor, right * factor
    first = left * cos - right * sin
    second = left * sin + right * cos
    most = tl.maximum(tl.max(tl.abs(k), 0), tl.maximum(tl.max(tl.abs(first), 0), tl.max(tl.abs(second), 0)))
    scale = tl.maximum(most, AMAX_FLOOR) / E4M3_MAX
    page, slot = tl.maximum(place, 0) // PAGE, tl.maximum(place, 0) % PAGE
    start = page * (PAGE * (INDEX + 4))
    code = codes + start + slot * INDEX
    kind = codes.dtype.element_ty
    tl.store(code + plain, (k / scale).to(kind), mask=store & (plain < PLAIN))
    tl.store(code + PLAIN + half, (first / scale).to(kind), mask=store & (half >= 0))
    tl.store(code + PLAIN + HALF + half, (second / scale).to(kind), mask=store & (half >= 0))
    tl.store(scales + (start + PAGE * INDEX) // 4 + slot, scale, mask=store)
