{% include "shared/product.wgsl" %}

// C = epilogue(A · B), straight from the buffers: for CPUs that act as GPUs, where a barrier is dear and workgroup
// memory is plain memory.
//
// A workgroup of {{ threads }} makes {{ tm }} rows, which are the same for all its invocations, by {{ bn }} columns; an invocation
{% if b.along_k %}
// makes {{ tn // 4 }} groups of four columns. B is stored along k: each column is read by itself, {{ "four k at once, " if b.vec else "" }}and A is one number for
// all. Sums run over k in order, in f32.
{% else %}
// makes {{ tn // 4 }} groups of four columns, so that B is read in neighbouring vec4s and A is one number for all. Sums run over k
// in order, in f32.
{% endif %}
{% if sliced %}
// The inner dimension is cut into slices, each a batch entry with a result of its own; sum_parts.wgsl adds them up.
{% endif %}
{% if sums %}
// Rows of A are summed on the way, and stored where the tile is of the first column.
{% endif %}

@compute @workgroup_size({{ threads }})
fn main(
    @builtin(workgroup_id) wg: vec3<u32>,
    @builtin(num_workgroups) n: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let group = group_index(wg, n);
    if group >= p.groups {
        return;
    }
    let tiles = p.tiles_m * p.tiles_n;
    let tile = group % tiles;
    let first = tile % p.tiles_m * {{ tm }}u;
    let col0 = tile / p.tiles_m * {{ bn }}u + lane * 4u;
    let s = bases(group / tiles);
{% for i in range(tm) %}
    // rows past the end repeat the last one and are not stored
    let row{{ i }} = min(first + {{ i }}u, p.m - 1u);
{% if sums %}
    var sum{{ i }} = 0.0;
{% endif %}
{% for j in range(tn // 4) %}
    var acc{{ i }}_{{ j }} = vec4<f32>(0.0);
{% endfor %}
{% endfor %}
{% if b.along_k %}
    // where columns start; those past the end repeat the last one
{% for j in range(tn // 4) %}
{% for r in range(4) %}
    let col{{ j }}_{{ r }} = s.b + min(col0 + {{ j * 4 * threads + r }}u, p.n - 1u) * p.b_stride;
{% endfor %}
{% endfor %}
{% endif %}
{# what lies along k in vec4s is read four k at once #}
{% set a4 = a.along_k and a.vec %}
{% set b4 = b.along_k and b.vec %}
{% set step = 4 if a4 or b4 else 1 %}
{% macro one_a(i, k) %}
{% if a.along_k %}f32(a[s.a + row{{ i }} * p.a_stride + {{ k }}]){% elif a.vec %}f32(a[s.a + {{ k }} * p.a_stride + row{{ i }} / 4u][row{{ i }} % 4u]){% else %}f32(a[s.a + {{ k }} * p.a_stride + row{{ i }}]){% endif %}
{% endmacro %}
{% macro one(i, k) %}a{{ i }}{{ "." ~ "xyzw"[k] if a4 else "_" ~ k }}{% endmacro %}
    for (var k0 = 0u; k0 < {{ k_end }}; k0 += {{ step }}u) {
{# one accumulator takes all k of a step before the next, so that it is read and written once a step: there are far more of
   them than registers #}
{% for i in range(tm) %}
{% if a4 %}
        let a{{ i }} = vec4<f32>(a[s.a + row{{ i }} * p.a_stride + k0 / 4u]);
{% else %}
{% for k in range(step) %}
        let a{{ i }}_{{ k }} = {{ one_a(i, "(k0 + " ~ k ~ "u)" if step == 4 else "k0") }};
{% endfor %}
{% endif %}
{% endfor %}
{% for j in range(tn // 4) %}
{% if b4 %}
{% for r in range(4) %}
        let along{{ j }}_{{ r }} = vec4<f32>(b[col{{ j }}_{{ r }} + k0 / 4u]);
{% endfor %}
{% endif %}
{% for k in range(step) %}
{% if b4 %}
        let b{{ j }}_{{ k }} = vec4<f32>({% for r in range(4) %}along{{ j }}_{{ r }}.{{ "xyzw"[k] }}{{ ", " if not loop.last }}{% endfor %});
{% elif b.along_k %}
        let b{{ j }}_{{ k }} = vec4<f32>({% for r in range(4) %}f32(b[col{{ j }}_{{ r }} + k0 + {{ k }}u]){{ ", " if not loop.last }}{% endfor %});
{% else %}
        let b{{ j }}_{{ k }} = read_b(s.b + (k0 + {{ k }}u) * p.b_stride, col0 + {{ j * 4 * threads }}u, p.n);
{% endif %}
{% endfor %}
{% endfor %}
{% for i in range(tm) %}
{% if sums %}
{% for k in range(step) %}
        sum{{ i }} += {{ one(i, k) }};
{% endfor %}
{% endif %}
{% for j in range(tn // 4) %}
{% for k in range(step) %}
        acc{{ i }}_{{ j }} = fma(vec4<f32>({{ one(i, k) }}), b{{ j }}_{{ k }}, acc{{ i }}_{{ j }});
{% endfor %}
{% endfor %}
{% endfor %}
    }
{% for i in range(tm) %}
{% for j in range(tn // 4) %}
    finish(s, first + {{ i }}u, col0 + {{ j * 4 * threads }}u, acc{{ i }}_{{ j }});
{% endfor %}
{% endfor %}
{% if sums %}
    if tile < p.tiles_m && lane == 0u {
{% for i in range(tm) %}
        finish_sum(s, first + {{ i }}u, sum{{ i }});
{% endfor %}
    }
{% endif %}
}
