{# Rows of f32 for units that multiply f16: each is scaled by a power of two so that its largest magnitude lies between
2^14 and 2^15, and what it was scaled with is taken back from the products. A row that holds an infinity or a NaN is
staged as zeros, and its factor is NaN: whoever sees it gets NaN, whoever does not is left alone. #}
// The bits of the largest magnitude.
fn magnitude(x: vec4<f32>) -> u32 {
    let bits = bitcast<vec4<u32>>(x) & vec4<u32>(0x7fffffffu);
    return max(max(bits.x, bits.y), max(bits.z, bits.w));
}

// Whether a row of this largest magnitude holds an infinity or a NaN.
fn broken(magnitude: u32) -> bool {
    return magnitude >= 0x7f800000u;
}

// The exponent of a largest magnitude with its bias; that of smaller numbers than 2^-112 is that of 2^-112, that of
// zeros is that of 1.
fn exponent(magnitude: u32) -> u32 {
    return select(max(magnitude >> 23u, 15u), 127u, magnitude == 0u);
}

// What a row of this largest magnitude is multiplied with to lie there by an exponent, its own or a larger one.
fn scale_by(exponent: u32, magnitude: u32) -> f32 {
    return bitcast<f32>(select((268u - exponent) << 23u, 0u, broken(magnitude)));
}

fn row_scale(magnitude: u32) -> f32 {
    return scale_by(exponent(magnitude), magnitude);
}

// What undoes it; NaN for a row that is broken.
fn factor_by(exponent: u32, magnitude: u32) -> f32 {
    return bitcast<f32>(select((exponent - 14u) << 23u, magnitude | 0x00400000u, broken(magnitude)));
}

fn row_factor(magnitude: u32) -> f32 {
    return factor_by(exponent(magnitude), magnitude);
}

// x scaled; 0 in a row that is broken, whose scale is 0.
fn scaled(x: vec4<f32>, scale: f32) -> vec4<f32> {
    return select(x * scale, vec4<f32>(0.0), scale == 0.0);
}
{% if u.halves | length == 2 %}

// The upper 11 bits of each number; the rest fits into another f16. A conversion there and back would be optimised away.
fn upper(x: vec4<f32>) -> vec4<f32> {
    return bitcast<vec4<f32>>(bitcast<vec4<u32>>(x) & vec4<u32>(0xffffe000u));
}
{% endif %}
