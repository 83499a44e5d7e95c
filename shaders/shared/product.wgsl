// What matmul.wgsl, matmul_direct.wgsl and matmul_units.wgsl share: parameters, bindings, the epilogue and the store of four
// neighbouring columns. Strides and offsets count array elements, which are vec4s where an operand allows it.
{% if f16 %}
enable f16;
{% endif %}

struct Params {
    groups: u32, // workgroups that have work
    m: u32,
    n: u32,
    k: u32,
    zero: u32, // 0, unknown to the compiler: numbers that WGSL has no literal for are made with it
    tiles_m: u32,
    tiles_n: u32,
    a_offset: u32,
    a_stride: u32, // between rows of a stored (M, K), between k of a stored (K, M)
    b_offset: u32,
    b_stride: u32, // between k of b stored (K, N), between columns of b stored (N, K)
    c_offset: u32,
    c_stride: u32, // between rows
{% if sliced %}
    tail: u32, // k of the last slice; k is that of all others
{% endif %}
{% if sums %}
    sums_offset: u32,
{% endif %}
{% for d in range(batch_rank) %}
    batch{{ d }}: u32,
    a_batch{{ d }}: u32,
    b_batch{{ d }}: u32,
    c_batch{{ d }}: u32,
{% if sums %}
    sums_batch{{ d }}: u32,
{% endif %}
{% endfor %}
{% for e in extras %}
    e{{ e.index }}_offset: u32,
    e{{ e.index }}_row: u32,
{% set k = e.index %}
{% for d in range(batch_rank) %}
    e{{ k }}_batch{{ d }}: u32,
{% endfor %}
{% endfor %}
{% if scaled %}
{% for name in ["a", "b"] %}
    exp_{{ name }}_offset: u32,
    exp_{{ name }}_parts: u32, // the largest of so many exponents counts
    exp_{{ name }}_part: u32, // between them
{% for d in range(batch_rank) %}
    exp_{{ name }}_batch{{ d }}: u32,
{% endfor %}
{% endfor %}
{% endif %}
}

{% include "shared/params.wgsl" %}
@group(0) @binding(1) var<storage, read> a: array<{{ a.storage }}>;
@group(0) @binding(2) var<storage, read> b: array<{{ b.storage }}>;
{% for e in extras if not e.in_place %}
@group(0) @binding({{ e.binding }}) var<storage, read> e{{ e.index }}: array<{{ e.storage }}>;
{% endfor %}
@group(0) @binding({{ out_binding }}) var<storage, read_write> c: array<{{ out_storage }}>;
{% if sums %}
@group(0) @binding({{ out_binding + 1 }}) var<storage, read_write> row_sums: array<{{ out_scalar }}>;
{% endif %}
{% if scaled %}
@group(0) @binding({{ out_binding - 2 }}) var<storage, read> exp_a: array<u32>;
@group(0) @binding({{ out_binding - 1 }}) var<storage, read> exp_b: array<u32>;
{% endif %}

{% include "shared/group.wgsl" %}
{% include "shared/chain.wgsl" %}

// {{ "Eight" if eights else "Four" }} neighbours along an operand's contiguous dimension, from index i; those at or past `end` are 0.
{% for side in [a, b] %}
{% if eights %}
fn read_{{ side.name }}(at: u32, i: u32, end: u32) -> vec4<u32> {
{% if guarded %}
    if i >= end {
        return vec4<u32>(0u);
    }
{% endif %}
    return {{ side.name }}[at + i / 8u];
}
{% else %}
fn read_{{ side.name }}(at: u32, i: u32, end: u32) -> vec4<{{ staged }}> {
{% if side.vec %}
{% if guarded %}
    if i >= end {
        return vec4<{{ staged }}>(0.0);
    }
{% endif %}
    return vec4<{{ staged }}>({{ side.name }}[at + i / 4u]);
{% else %}
    var v = vec4<{{ staged }}>(0.0);
    if i < end { v.x = {{ staged }}({{ side.name }}[at + i]); }
    if i + 1u < end { v.y = {{ staged }}({{ side.name }}[at + i + 1u]); }
    if i + 2u < end { v.z = {{ staged }}({{ side.name }}[at + i + 2u]); }
    if i + 3u < end { v.w = {{ staged }}({{ side.name }}[at + i + 3u]); }
    return v;
{% endif %}
}
{% endif %}
{% endfor %}

// Where the batch entry z of each operand starts{{ ", and k of the slice z" if sliced else "" }}.
struct Bases {
    a: u32,
    b: u32,
    c: u32,
{% if sliced %}
    k: u32,
{% endif %}
{% if sums %}
    sums: u32,
{% endif %}
{% for e in extras %}
    e{{ e.index }}: u32,
{% endfor %}
{% if scaled %}
    exp_a: u32,
    exp_b: u32,
{% endif %}
}

fn bases(z: u32) -> Bases {
    var s = Bases(p.a_offset, p.b_offset, p.c_offset{{ ", p.k" if sliced else "" }}{{ ", p.sums_offset" if sums else "" }}{% for e in extras %}, p.e{{ e.index }}_offset{% endfor %}{{ ", p.exp_a_offset, p.exp_b_offset" if scaled else "" }});
{% if batch_rank > 0 %}
    var rest = z;
{% for d in range(batch_rank)|reverse %}
{% if loop.last %}
    let z{{ d }} = rest;
{% else %}
    let z{{ d }} = rest % p.batch{{ d }};
    rest = rest / p.batch{{ d }};
{% endif %}
    s.a += z{{ d }} * p.a_batch{{ d }};
    s.b += z{{ d }} * p.b_batch{{ d }};
    s.c += z{{ d }} * p.c_batch{{ d }};
{% if sliced %}
    s.k = select(p.k, p.tail, z{{ d }} + 1u == p.batch{{ d }});
{% endif %}
{% if sums %}
    s.sums += z{{ d }} * p.sums_batch{{ d }};
{% endif %}
{% for e in extras %}
    s.e{{ e.index }} += z{{ d }} * p.e{{ e.index }}_batch{{ d }};
{% endfor %}
{% if scaled %}
    s.exp_a += z{{ d }} * p.exp_a_batch{{ d }};
    s.exp_b += z{{ d }} * p.exp_b_batch{{ d }};
{% endif %}
{% endfor %}
{% endif %}
    return s;
}

{% for e in extras %}
// The epilogue's input {{ e.index }} at columns col..col+3 of a row.
fn extra{{ e.index }}(s: Bases, row: u32, col: u32) -> {{ e.loaded }} {
    let at{{ e.index }} = s.e{{ e.index }} + row * p.e{{ e.index }}_row;
    return {{ e.load }};
}

{% endfor %}
// The epilogue on columns col..col+3 of a row with its inputs there, then the store.
fn finish_with(s: Bases, row: u32, col: u32, i0: vec4<f32>{% for e in extras %}, i{{ e.index }}: {{ e.loaded }}{% endfor %}) {
{% if guarded %}
    if row >= p.m || col >= p.n {
        return;
    }
{% endif %}
    let at = s.c + row * p.c_stride;
{% for step in steps %}
    let t{{ loop.index0 }} = {{ step }};
{% endfor %}
    let v = vec4<{{ out_scalar }}>({{ result }});
{% if out_vec %}
    c[at + col / 4u] = v;
{% else %}
    c[at + col] = v.x;
    if col + 1u < p.n { c[at + col + 1u] = v.y; }
    if col + 2u < p.n { c[at + col + 2u] = v.z; }
    if col + 3u < p.n { c[at + col + 3u] = v.w; }
{% endif %}
}

// The same, with inputs that are read here.
fn finish(s: Bases, row: u32, col: u32, i0: vec4<f32>) {
{% if guarded %}
    if row >= p.m || col >= p.n {
        return;
    }
{% endif %}
    finish_with(s, row, col, i0{% for e in extras %}, extra{{ e.index }}(s, row, col){% endfor %});
}
{% if sums %}

// The sum of a row of A over k.
fn finish_sum(s: Bases, row: u32, v: f32) {
    if row < p.m {
        row_sums[s.sums + row] = {{ out_scalar }}(v);
    }
}
{% endif %}
