{% include "shared/product.wgsl" %}

// C = epilogue(A · B), straight from the buffers: for CPUs that act as GPUs, where a barrier is dear and workgroup
// memory is plain memory.
//
// A workgroup of {{ threads }} makes {{ tm }} rows, which are the same for all its invocations, by {{ bn }} columns; an invocation
// makes {{ tn // 4 }} groups of four columns, so that B is read in neighbouring vec4s and A is one number for all. Sums run over k
// in order, in f32.

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
{% for j in range(tn // 4) %}
    var acc{{ i }}_{{ j }} = vec4<f32>(0.0);
{% endfor %}
{% endfor %}
{# a number of A: along_k picks one of four neighbours that were read at once #}
{% set step = 4 if a.along_k and a.vec else 1 %}
    for (var k0 = 0u; k0 < p.k; k0 += {{ step }}u) {
{% for i in range(tm) %}
{% if step == 4 %}
        let a{{ i }} = vec4<f32>(a[s.a + row{{ i }} * p.a_stride + k0 / 4u]);
{% elif a.along_k %}
        let a{{ i }} = f32(a[s.a + row{{ i }} * p.a_stride + k0]);
{% elif a.vec %}
        let a{{ i }} = f32(a[s.a + k0 * p.a_stride + row{{ i }} / 4u][row{{ i }} % 4u]);
{% else %}
        let a{{ i }} = f32(a[s.a + k0 * p.a_stride + row{{ i }}]);
{% endif %}
{% endfor %}
{% for k in range(step) %}
        {
{% for j in range(tn // 4) %}
            let b{{ j }} = read_b(s.b + (k0 + {{ k }}u) * p.b_stride, col0 + {{ j * 4 * threads }}u, p.n);
{% endfor %}
{% for i in range(tm) %}
{% for j in range(tn // 4) %}
            acc{{ i }}_{{ j }} = fma(vec4<f32>(a{{ i }}{% if step == 4 %}.{{ "xyzw"[k] }}{% endif %}), b{{ j }}, acc{{ i }}_{{ j }});
{% endfor %}
{% endfor %}
        }
{% endfor %}
    }
{% for i in range(tm) %}
{% for j in range(tn // 4) %}
    finish(s, first + {{ i }}u, col0 + {{ j * 4 * threads }}u, acc{{ i }}_{{ j }});
{% endfor %}
{% endfor %}
}
