// Philox 4x32-10 (Salmon and others, "Parallel random numbers: as easy as 1, 2, 3", 2011) and what dropout makes of its
// words. A stream is (seed's low word, its high word, step, site). Integers wrap at 32 bits.

{% if int64 %}
fn philox_round(x: vec4<u32>, key: vec2<u32>) -> vec4<u32> {
    let a = u64(x.x) * 0xd2511f53lu;
    let b = u64(x.z) * 0xcd9e8d57lu;
    return vec4<u32>(u32(b >> 32u) ^ x.y ^ key.x, u32(b), u32(a >> 32u) ^ x.w ^ key.y, u32(a));
}
{% else %}
// The upper halves of 64-bit products, from halves of 16 bits: no sum overflows.
fn mul_hi(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> {
    let half = vec2<u32>(0xffffu);
    let shift = vec2<u32>(16u);
    let low = (a & half) * (b & half);
    let one = (a >> shift) * (b & half) + (low >> shift);
    let two = (a & half) * (b >> shift) + (one & half);
    return (a >> shift) * (b >> shift) + (one >> shift) + (two >> shift);
}

fn philox_round(x: vec4<u32>, key: vec2<u32>) -> vec4<u32> {
    let by = vec2<u32>(0xd2511f53u, 0xcd9e8d57u);
    let high = mul_hi(x.xz, by);
    let low = x.xz * by;
    return vec4<u32>(high.y ^ x.y ^ key.x, low.y, high.x ^ x.w ^ key.y, low.x);
}
{% endif %}

fn philox(counter: vec4<u32>, seed: vec2<u32>) -> vec4<u32> {
    var x = counter;
    var key = seed;
    for (var round = 0u; round < 10u; round += 1u) {
        x = philox_round(x, key);
        key += vec2<u32>(0x9e3779b9u, 0xbb67ae85u);
    }
    return x;
}

// What a group of four elements is multiplied with: 0, or what keeps the mean.
fn factors(group: u32, stream: vec4<u32>) -> vec4<f32> {
    let words = philox(vec4<u32>(group, stream.zw, 0u), stream.xy);
    return select(vec4<f32>(p.keep), vec4<f32>(0.0), words < vec4<u32>(p.threshold));
}
