{% if rms %}
// y = x · rstd · γ for each row x, rstd = 1/sqrt(mean(x²) + ε).
{% else %}
// y = (x - mean) · rstd · γ + β for each row x{{ " = a + b" if add else "" }}, rstd = 1/sqrt(var + ε).
{% endif %}
// One {{ "invocation" if per_row else "workgroup" }} does one row.
// Order of sums: {{ "" if per_row else "each lane " }}{{ "four neighbours at once, " if vec else "" }}blocks of 64 in turn, each summed in turn{{ "" if per_row else ", then lanes as merge_lanes has it" }}.
{% if not rms %}
// A first pass finds a pivot near the mean: x[0] + mean(x - x[0]), exact for a constant row of any magnitude.
// A second finds r, the mean of e = x - pivot (what rounding left over), and var = mean(e²) - r².
{% endif %}
{% if add %}
// b is whole rows that repeat, or one number (step 0). The sum is rounded to its stored type before it is normalised.
{% endif %}
{% if f16 %}
enable f16;
{% endif %}

struct Params {
    groups: u32,
    rows: u32,
    width: u32,
    first: u32,
    b_row: u32,
    b_rows: u32,
    b_step: u32,
    inverse_width: f32,
    eps: f32,
}
{% include "shared/params.wgsl" %}
{% for name, access, type in bindings %}
@group(0) @binding({{ loop.index }}) var<storage, {{ access }}> {{ name }}: array<{{ type }}>;
{% endfor %}

{% include "shared/lanes.wgsl" %}

{% include "shared/group.wgsl" %}

fn total(v: {{ loaded }}) -> f32 {
    return {{ "(v.x + v.y) + (v.z + v.w)" if vec else "v" }};
}
{% if not per_row %}

alias Partial = {{ "f32" if rms else "vec2<f32>" }};

{% include "shared/sum_lanes.wgsl" %}
{% endif %}

{% include "shared/main_row.wgsl" %}
    let width = p.width{{ " / 4u" if vec else "" }};
    let base = row * width;
{% if rms %}

    var squares = 0.0;
    for (var start = 0u; start < width; start += BLOCK) {
        let end = min(start + BLOCK, width);
        var block = 0.0;
        for (var j = start + lane; j < end; j += LANES) {
            let v = {{ loaded }}(x[base + j]);
            block += total(v * v);
        }
        squares += block;
    }
{% if not per_row %}
    squares = merge_lanes(squares, lane);
{% endif %}
    let rstd = inverseSqrt(squares * p.inverse_width + p.eps);
    for (var j = lane; j < width; j += LANES) {
        y[base + j] = {{ stored }}({{ loaded }}(x[base + j]) * rstd * {{ loaded }}(gamma[j]));
    }
{% else %}

{% if add %}
    let b_base = (p.b_row + row) % p.b_rows * width;
    let x0 = f32({{ stored }}({{ loaded }}(a[base]) + {{ loaded }}(b[b_base])){{ ".x" if vec else "" }});
{% else %}
    let x0 = f32(x[base]{{ ".x" if vec else "" }});
{% endif %}
    var shifted = 0.0;
    for (var start = 0u; start < width; start += BLOCK) {
        let end = min(start + BLOCK, width);
        var block = 0.0;
        for (var j = start + lane; j < end; j += LANES) {
{% if add %}
            let v = {{ stored }}({{ loaded }}(a[base + j]) + {{ loaded }}(b[b_base + j * p.b_step]));
            sum[base + j] = v;
            block += total({{ loaded }}(v) - x0);
{% else %}
            block += total({{ loaded }}(x[base + j]) - x0);
{% endif %}
        }
        shifted += block;
    }
{% if not per_row %}
    shifted = merge_lanes(vec2(shifted, 0.0), lane).x;
{% endif %}
    let pivot = x0 + shifted * p.inverse_width;

    var moments = vec2(0.0);
    for (var start = 0u; start < width; start += BLOCK) {
        let end = min(start + BLOCK, width);
        var block = vec2(0.0);
        for (var j = start + lane; j < end; j += LANES) {
            let e = {{ loaded }}({{ x }}[base + j]) - pivot;
            block += vec2(total(e), total(e * e));
        }
        moments += block;
    }
{% if not per_row %}
    moments = merge_lanes(moments, lane);
{% endif %}
    let r = moments.x * p.inverse_width;
    let spread = moments.y * p.inverse_width - r * r;
    // not max(), which may drop a NaN
    let variance = select(spread, 0.0, spread < 0.0);
    let rstd = inverseSqrt(variance + p.eps);
    for (var j = lane; j < width; j += LANES) {
        let e = {{ loaded }}({{ x }}[base + j]) - pivot;
        y[base + j] = {{ stored }}((e - r) * rstd * {{ loaded }}(gamma[j]) + {{ loaded }}(beta[j]));
    }
{% endif %}
{% if stats %}
    if lane == 0u {
{% if not rms %}
        means[p.first + row] = pivot + r;
{% endif %}
        rstds[p.first + row] = rstd;
    }
{% endif %}
}
