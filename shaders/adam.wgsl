// One step of {{ "AdamW" if decoupled else "Adam" }}: m' = β1·m + (1 − β1)·g, v' = β2·v + (1 − β2)·g²,
// w' = w{{ " − lr·λ·w" if decoupled }} − lr · (m' / c1) / (sqrt(v' / c2) + ε), with scalars (lr, c1, c2{{ ", f, s" if limited }}){{ "" if decoupled else " and λ·w added to g" }}.
// One invocation makes four neighbours{{ ", each where it was" if in_place }}; the last four may reach into the padding.
// All is f32, also of an f16 gradient, whose square f16 would lose. ε stands outside the root, so that a gradient of
// 0 alone gives 0 / ε and not 0 / 0.
{% if limited %}
// f is a factor of g; where s is 0 the step does not count and all stays as it is.
{% endif %}
{% if narrow %}
// w' is also stored in f16.
{% endif %}
{% if f16 %}
enable f16;
{% endif %}

struct Params {
    groups: u32,
    quads: u32,
    beta1: f32,
    rest1: f32, // 1 − β1
    beta2: f32,
    rest2: f32,
    eps: f32,
    decay: f32, // λ
}
{% include "shared/params.wgsl" %}
{% for name, access, type in bindings %}
@group(0) @binding({{ loop.index }}) var<storage, {{ access }}> {{ name }}: array<{{ type }}>;
{% endfor %}

const SIZE: u32 = {{ size }}u;

{% include "shared/group.wgsl" %}

@compute @workgroup_size({{ size }})
fn main(
    @builtin(workgroup_id) wg: vec3<u32>,
    @builtin(num_workgroups) grid: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let i = group_index(wg, grid) * SIZE + lane;
    if i >= p.quads {
        return;
    }
{% if limited %}
    if scalars[4] == 0.0 {
{% if narrow %}
        narrow_w[i] = vec4<f16>(w[i]);
{% endif %}
{% if not in_place %}
        new_w[i] = w[i];
        new_m[i] = m[i];
        new_v[i] = v[i];
{% endif %}
        return;
    }
{% endif %}
{% set whole = "vec4<f32>(gradient[i])" ~ (" * scalars[3]" if limited) %}
    let rate = scalars[0];
    let old = w[i];
{% if decoupled %}
    let g = {{ whole }};
    let kept = old - rate * p.decay * old;
{% else %}
    let g = {{ whole }} + p.decay * old;
    let kept = old;
{% endif %}
    let first = p.beta1 * m[i] + p.rest1 * g;
    let second = p.beta2 * v[i] + p.rest2 * g * g;
    let root = sqrt(second / scalars[2]);
    let next = kept - rate * (first / scalars[1]) / (root + p.eps);
    {{ new_w }}[i] = next;
{% if narrow %}
    narrow_w[i] = vec4<f16>(next);
{% endif %}
    {{ new_m }}[i] = first;
    {{ new_v }}[i] = second;
}
