// stats = (log-sum-exp, sum of dout · out) of every query of every head: what the gradient of an attention needs beside
// its operands, in one buffer, so that few are bound.
//
// A batch entry begins with (length, step) and the seed's two words, 0 where there are none; then come its heads with
// their queries. An invocation makes one pair of heads that lie side by side. A sum runs in four parts over every fourth
// element in order; the parts are added pairwise, in f32.
{% if f16 %}
enable f16;
{% endif %}

struct Params {
    groups: u32, // workgroups that have work
    count: u32, // invocations that have work
    heads: u32,
    sq: u32, // queries
    sk: u32, // keys
    d: u32, // head size
    out_offset: u32, out_batch: u32, out_row: u32, out_head: u32,
    dout_offset: u32, dout_batch: u32, dout_row: u32, dout_head: u32,
    lse_offset: u32,
{% if lengths %}
    lengths_offset: u32,
{% endif %}
    stats_offset: u32,
    stats_batch: u32,
}

@group(0) @binding(0) var<uniform> p: Params;
@group(0) @binding(1) var<storage, read> out: array<{{ storage }}>;
@group(0) @binding(2) var<storage, read> dout: array<{{ storage }}>;
@group(0) @binding(3) var<storage, read> lse: array<u32>; // bits of f32
{% if lengths %}
@group(0) @binding(4) var<storage, read> lengths: array<u32>; // bits of i32
{% endif %}
{% if dropout %}
@group(0) @binding({{ 5 if lengths else 4 }}) var<storage, read> counter: array<u32>;
{% endif %}
@group(0) @binding({{ stats_binding }}) var<storage, read_write> stats: array<vec2<u32>>;

{% include "shared/group.wgsl" %}
{% include "shared/heads.wgsl" %}

@compute @workgroup_size({{ size }})
fn main(
    @builtin(workgroup_id) wg: vec3<u32>,
    @builtin(num_workgroups) n: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let id = group_index(wg, n) * {{ size }}u + lane;
    if id >= p.count {
        return;
    }
    let h = id % p.heads;
    let i = id / p.heads % p.sq;
    let b = id / p.heads / p.sq;
    let at_out = p.out_offset + b * p.out_batch + i * p.out_row + h * p.out_head;
    let at_dout = p.dout_offset + b * p.dout_batch + i * p.dout_row + h * p.dout_head;
    var sums = vec4<f32>(0.0);
    for (var c = 0u; c < p.d; c += 4u) {
        sums = fma(read_out(at_out, c), read_dout(at_dout, c), sums);
    }
    let delta = (sums.x + sums.y) + (sums.z + sums.w);
    let at = p.stats_offset + b * p.stats_batch;
    let row = h * p.sq + i;
    stats[at + 2u + row] = vec2<u32>(lse[p.lse_offset + b * p.heads * p.sq + row], bitcast<u32>(delta));
    if row == 0u {
        stats[at] = vec2<u32>({{ "lengths[p.lengths_offset + b]" if lengths else "0u" }}, {{ "counter[2]" if dropout else "0u" }});
        stats[at + 1u] = vec2<u32>({{ "counter[0], counter[1]" if dropout else "0u" }});
    }
}
