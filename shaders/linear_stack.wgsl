{% set rounded = scalar != "f32" %}
{% set nv = width // 4 %}
{% set own = rows // split %}
{% set step = 4 * nv * unroll %}
{% set blocks = nv // split // unroll %}
// {{ "A stack of linear layers backwards, from the gradient of its result to that of its input" if backward else "A stack of linear layers of one width" }}, in one dispatch: a workgroup of {{ threads }}
// carries {{ rows }} rows through all layers in workgroup memory, so that nothing but weights is read between layers, and
// those from the device's cache, where other workgroups have brought them.
//
// Weights are (layers, inner, outer): an invocation makes four neighbouring columns of all rows, and so reads each weight once.
{% if split > 1 %}
// The inner dimension is cut into {{ split }} parts, one an invocation, whose sums are exchanged: each then finishes {{ own }} rows.
{% endif %}
// The next {{ 4 * unroll }} inner elements are fetched while these are used, across layers too. Workgroups begin at different ones, so
// that each brings some into the cache for all. Sums run in f32, in an order that depends on nothing but a row's place.
{% if rounded %}
enable f16;
{% endif %}

{% include "shared/stack.wgsl" %}

// In vec4s: a layer's rows, and its weights.
const TILE: u32 = {{ rows * nv }}u;
const LAYER: u32 = {{ 4 * nv * nv }}u;

{# rows that are carried; with two or four parts also the sums that they exchange #}
var<workgroup> pool: array<vec4<f32>, {{ regions * rows * nv }}>;

{% include "shared/stack_finish.wgsl" %}

{# the inner elements that are fetched together #}
{% macro fetch(var) %}
{% for u in range(4 * unroll) %}
{{ var }}w{{ u }} = vec4<f32>(w[base + block * {{ step }}u + {{ u * nv }}u]);
{% endfor %}
{% endmacro %}
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
    let first = group * {{ rows }}u;
    let last = p.rows - 1u;
    let part = lane / {{ nv }}u;
    let quad = lane % {{ nv }}u;
    // the layer's weights of this part, and which of them are fetched next
    var base = p.w_offset + part * {{ blocks * step }}u + quad{{ " + (p.layers - 1u) * LAYER" if backward }};
    var block = group % {{ blocks }}u;
    {{ fetch("var ")|indent(4) }}
    // rows past the end repeat the last one and are not stored
{% for i in range((rows * nv + threads - 1) // threads) %}
{% if (i + 1) * threads > rows * nv %}
    if lane < {{ rows * nv - i * threads }}u {
{% else %}
    {
{% endif %}
        let e = lane + {{ i * threads }}u;
        let row = first + e / {{ nv }}u;
        let at = min(row, last) * {{ nv }}u + e % {{ nv }}u;
{% if backward %}
        let v = vec4<{{ scalar }}>(finish(vec4<f32>(x[p.x_offset + at]), vec4<f32>(y[p.y_offset + at])));
        if row <= last {
            dz[(p.layers - 1u) * p.rows * {{ nv }}u + at] = v;
        }
{% else %}
        let v = x[p.x_offset + at];
{% if keep %}
        if row <= last {
            kept[at] = v;
        }
{% endif %}
{% endif %}
        pool[e] = vec4<f32>(v);
    }
{% endfor %}
    workgroupBarrier();
    // where this invocation's own rows begin
{% if split == 1 %}
    let own = 0u;
{% elif split == 2 %}
    let own = part * {{ own }}u;
{% else %}
    let own = (part >> 1u) * {{ rows // 2 }}u + (part & 1u) * {{ own }}u;
{% endif %}
    var carried = 0u;
    for (var l = 0u; l < p.layers; l++) {
{% if backward %}
        let layer = p.layers - 1u - l;
{% for i in range(own) %}
        let e{{ i }} = vec4<f32>(kept[p.kept_offset + (layer * p.rows + min(first + own + {{ i }}u, last)) * {{ nv }}u + quad]);
{% endfor %}
{% else %}
        let e = {{ "vec4<f32>(b[p.b_offset + l * " ~ nv ~ "u + quad])" if bias else "vec4<f32>(0.0)" }};
{% endif %}
{% for r in range(rows) %}
        var acc{{ r }} = vec4<f32>(0.0);
{% endfor %}
        for (var k = 0u; k < {{ blocks }}u; k++) {
            let at = carried + part * {{ blocks * unroll }}u + block * {{ unroll }}u;
{% for u in range(4 * unroll) %}
            let u{{ u }} = w{{ u }};
{% endfor %}
            block = select(block + 1u, 0u, block == {{ blocks - 1 }}u);
            if k == {{ blocks - 1 }}u {
                // the last layer's end fetches its first weights again
                base {{ "-" if backward else "+" }}= select(0u, LAYER, l + 1u < p.layers);
            }
            {{ fetch("")|indent(12) }}
{% for u in range(unroll) %}
{% for r in range(rows) %}
            let x{{ u }}_{{ r }} = pool[at + {{ r * nv + u }}u];
{% for j in range(4) %}
            acc{{ r }} = fma(vec4<f32>(x{{ u }}_{{ r }}.{{ "xyzw"[j] }}), u{{ 4 * u + j }}, acc{{ r }});
{% endfor %}
{% endfor %}
{% endfor %}
        }
{% if split == 1 %}
        workgroupBarrier();
        let next = 0u;
{% for i in range(own) %}
        let v{{ i }} = acc{{ i }};
{% endfor %}
{% elif split == 2 %}
        let odd = part != 0u;
        // the other's rows
        let theirs = TILE + ({{ own }}u - own) * {{ nv }}u + quad;
{% for i in range(own) %}
        pool[theirs + {{ i * nv }}u] = select(acc{{ i + own }}, acc{{ i }}, odd);
{% endfor %}
        workgroupBarrier();
        let next = 0u;
{% for i in range(own) %}
        let v{{ i }} = select(acc{{ i }}, acc{{ i + own }}, odd) + pool[TILE + (own + {{ i }}u) * {{ nv }}u + quad];
{% endfor %}
{% else %}
        // first with the part two further, in the regions that hold no rows: both pairs at once
        let upper = part >= 2u;
        let odd = (part & 1u) != 0u;
        let next = TILE - carried;
        let pair = select(next, 2u * TILE, odd) + quad;
        let theirs = pair + select({{ rows // 2 * nv }}u, 0u, upper);
{% for i in range(rows // 2) %}
        pool[theirs + {{ i * nv }}u] = select(acc{{ i + rows // 2 }}, acc{{ i }}, upper);
{% endfor %}
        workgroupBarrier();
        let mine = pair + select(0u, {{ rows // 2 * nv }}u, upper);
{% for i in range(rows // 2) %}
        let h{{ i }} = select(acc{{ i }}, acc{{ i + rows // 2 }}, upper) + pool[mine + {{ i * nv }}u];
{% endfor %}
        // then with the neighbour, where the rows were
        let half = carried + select(0u, {{ rows // 2 * nv }}u, upper) + quad;
{% for i in range(own) %}
        pool[half + select({{ own * nv }}u, 0u, odd) + {{ i * nv }}u] = select(h{{ i + own }}, h{{ i }}, odd);
{% endfor %}
        workgroupBarrier();
{% for i in range(own) %}
        let v{{ i }} = select(h{{ i }}, h{{ i + own }}, odd) + pool[half + select(0u, {{ own * nv }}u, odd) + {{ i * nv }}u];
{% endfor %}
{% endif %}
{% for i in range(own) %}
        {
            let row = first + own + {{ i }}u;
{% if backward %}
            if layer > 0u {
                let v = vec4<{{ scalar }}>(finish(v{{ i }}, e{{ i }}));
                pool[next + (own + {{ i }}u) * {{ nv }}u + quad] = vec4<f32>(v);
                if row <= last {
                    dz[((layer - 1u) * p.rows + row) * {{ nv }}u + quad] = v;
                }
            } else if row <= last {
                dx[row * {{ nv }}u + quad] = vec4<{{ scalar }}>(v{{ i }});
            }
{% else %}
            let v = vec4<{{ scalar }}>(finish(v{{ i }}, e));
            if l + 1u < p.layers {
                pool[next + (own + {{ i }}u) * {{ nv }}u + quad] = vec4<f32>(v);
{% if keep %}
                if row <= last {
                    kept[((l + 1u) * p.rows + row) * {{ nv }}u + quad] = v;
                }
{% endif %}
            } else if row <= last {
                y[row * {{ nv }}u + quad] = v;
            }
{% endif %}
        }
{% endfor %}
        carried = next;
        workgroupBarrier();
    }
}
