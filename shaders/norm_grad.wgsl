{% if rms %}
// Gradient of an RMS norm's rows: dx = rstd · (g - h · mean(g · h)), g = dy · γ and h = x · rstd.
{% else %}
// Gradient of a layer norm's rows: dx = rstd · (g - h · mean(g · h) - mean(g)), g = dy · γ and h = (x - mean) · rstd.
{% endif %}
{% if add %}
// It is rounded to its stored type and added to another gradient of x.
{% endif %}
// One {{ "invocation" if per_row else "workgroup" }} does one row.
// Order of sums: {{ "" if per_row else "each lane " }}{{ "four neighbours at once, " if vec else "" }}blocks of 64 in turn, each summed in turn{{ "" if per_row else ", then lanes as merge_lanes has it" }}.
{% if f16 %}
enable f16;
{% endif %}

struct Params {
    groups: u32,
    rows: u32,
    width: u32,
    first: u32, // of the statistics
    inverse_width: f32,
}
{% include "shared/params.wgsl" %}
{% for name, access, type in bindings %}
@group(0) @binding({{ loop.index }}) var<storage, {{ access }}> {{ name }}: array<{{ type }}>;
{% endfor %}

{% include "shared/lanes.wgsl" %}

// the sums of g · h{{ "" if rms else " and of g" }}
alias Partial = {{ "f32" if rms else "vec2<f32>" }};

{% include "shared/group.wgsl" %}

fn total(v: {{ loaded }}) -> f32 {
    return {{ "(v.x + v.y) + (v.z + v.w)" if vec else "v" }};
}
{% if not per_row %}

{% include "shared/sum_lanes.wgsl" %}
{% endif %}

{% include "shared/main_row.wgsl" %}
    let width = p.width{{ " / 4u" if vec }};
    let base = row * width;
    let rstd = rstds[p.first + row];
{% if rms %}
    let mean = 0.0;
{% else %}
    let mean = means[p.first + row];
{% endif %}
    var sums = Partial(0.0);
    for (var start = 0u; start < width; start += BLOCK) {
        let end = min(start + BLOCK, width);
        var block = Partial(0.0);
        for (var j = start + lane; j < end; j += LANES) {
            let h = ({{ loaded }}(x[base + j]) - mean) * rstd;
            let g = {{ loaded }}(dy[base + j]) * {{ loaded }}(gamma[j]);
            block += {{ "total(g * h)" if rms else "vec2(total(g * h), total(g))" }};
        }
        sums += block;
    }
{% if not per_row %}
    sums = merge_lanes(sums, lane);
{% endif %}
    let means_of = sums * p.inverse_width;
    for (var j = lane; j < width; j += LANES) {
        let h = ({{ loaded }}(x[base + j]) - mean) * rstd;
        let g = {{ loaded }}(dy[base + j]) * {{ loaded }}(gamma[j]);
{% if rms %}
        let own = {{ stored }}(rstd * (g - h * means_of));
{% else %}
        let own = {{ stored }}(rstd * (g - h * means_of.x - means_of.y));
{% endif %}
{% if add %}
        dx[base + j] = {{ stored }}({{ loaded }}(other[base + j]) + {{ loaded }}(own));
{% else %}
        dx[base + j] = own;
{% endif %}
    }
}
