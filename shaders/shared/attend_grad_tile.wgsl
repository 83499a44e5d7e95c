{% from "shared/rows.wgsl" import multiply, add %}
{#
How attention_grad.wgsl has a part of rows in workgroup memory, `tile`: {{ chunk }} groups of columns of both sides, a gap
after every four rows, or {{ rows }} whole rows of the block. Macros read the kernel's values as they are where it imports
them.
#}
{% set inside = "c0 + c < " ~ columns ~ "u && " if columns % chunk != 0 else "" %}
{# {{ s }}0 to {{ s }}3: the products of the invocation's four rows of the block with its own four #}
{% macro products(s, theirs, ours) %}
{% for r in range(4) %}
        var {{ s }}{{ r }} = vec4<f32>(0.0);
{% endfor %}
        for (var c0 = 0u; c0 < {{ columns }}u; c0 += {{ chunk }}u) {
            for (var id = lane; id < {{ (other + own) * chunk }}u; id += {{ threads }}u) {
                let c = id % {{ chunk }}u;
                let r = id / {{ chunk }}u;
                // 0 for rows and columns past the end
                var value = vec4<f32>(0.0);
                if r < {{ other }}u {
                    if {{ inside }}t0 + r < end {
                        value = read_{{ theirs }}(at_{{ theirs }} + (t0 + r) * p.{{ theirs }}_row, (c0 + c) * 4u);
                    }
                } else if {{ inside }}first + r - {{ other }}u < {{ own_rows }} {
                    value = read_{{ ours }}(at_{{ ours }} + (first + r - {{ other }}u) * p.{{ ours }}_row, (c0 + c) * 4u);
                }
                tile[r * {{ chunk }}u + r / 4u + c] = value;
            }
            workgroupBarrier();
            for (var c = 0u; c < {{ chunk }}u; c += 1u) {
{% for r in range(4) %}
                let b{{ r }} = tile[x * {{ 4 * chunk + 1 }}u + {{ (other // 4) * (4 * chunk + 1) + r * chunk }}u + c];
{% endfor %}
{% for r in range(4) %}
                let a{{ r }} = tile[y * {{ 4 * chunk + 1 }}u + {{ r * chunk }}u + c];
{% endfor %}
{{ multiply(s) }}
            }
            workgroupBarrier();
        }
{% endmacro %}

{# pairs · rows of the block; guarded where some query does not see some key, whose rows may hold anything #}
{% macro apply(sum, guarded) %}
                for (var t = 0u; t < {{ rows }}u; t += 1u) {
                    let w = pairs[(t1 + t) * {{ tx }}u + x];
{% for c in range(nc) %}
                    let u{{ c }} = tile[t * {{ ty * nc }}u + y + {{ c * ty }}u];
{% for r in range(4) %}
                    {{ add(sum ~ r ~ "_" ~ c, "w." ~ "xyzw"[r], "u" ~ c, guarded) }}
{% endfor %}
{% endfor %}
                }
{% endmacro %}

{# adds to a result what the block gives it #}
{% macro add_up(sum, theirs) %}
        for (var t1 = 0u; t1 < min({{ other }}u, end - t0); t1 += {{ rows }}u) {
            for (var id = lane; id < {{ rows * columns }}u; id += {{ threads }}u) {
                let c = id % {{ columns }}u;
                let r = id / {{ columns }}u;
                var value = vec4<f32>(0.0);
                if t0 + t1 + r < end {
                    value = read_{{ theirs }}(at_{{ theirs }} + (t0 + t1 + r) * p.{{ theirs }}_row, c * 4u);
                }
                tile[r * {{ ty * nc }}u + c] = value;
            }
            workgroupBarrier();
            if all_see {
{{ apply(sum, false) }}
            } else {
{{ apply(sum, true) }}
            }
            workgroupBarrier();
        }
{% endmacro %}
