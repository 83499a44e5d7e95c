{% from "shared/product_sums.wgsl" import add_block %}
{#
The way of both operands' stages in matmul.wgsl: by `fetch_all` from their buffers into registers; by `stage_all` from
there into the workgroup arrays tile_{name}, as [k][outer], in vec4s along the outer dimension.

It goes in blocks of four k by four outer, one an invocation in each of `rounds`. A round has parts, as invocations have
blocks of A or of B: `part.id` is the block's number where `part.condition` holds. A block is four lines r{round}_{line},
along k or along the outer dimension, as the operand `part.side` lies in memory. Rounds, and `t`, which says how a stage
is fetched, are as src/kernel/matmul/source.rs makes them.
#}
{# declares a round's block and where it is #}
{% macro place(i, parts, t) %}
    var at{{ i }} = 0u; // where the first line of the block is in memory
    var stride{{ i }} = 0u; // from there to the next line
    var advance{{ i }} = 0u; // and to that of the next stage
    var put{{ i }} = 0u; // where the block is in workgroup memory
{% if t.guarded %}
    var k{{ i }} = 0u; // of the first line
    var o{{ i }} = 0u;
    var last{{ i }} = 0u; // the last line inside
{% endif %}
{% for part in parts %}
{% set side = part.side %}
{% set unit = 4 if side.vec else 1 %}
    {{ part.condition }} {
        let id = {{ part.id }};
{% if side.along_k %}
        let k4 = id % {{ t.k // 4 }}u;
        let o4 = id / {{ t.k // 4 }}u;
{% else %}
        let k4 = id / {{ side.outer // 4 }}u;
        let o4 = id % {{ side.outer // 4 }}u;
{% endif %}
{% if not t.guarded %}
        let o = {{ side.first }} + o4 * 4u;
{% elif side.vec %}
        let o = min({{ side.first }} + o4 * 4u, {{ side.limit }} - {{ 1 if side.along_k else 4 }}u);
        last{{ i }} = {{ side.limit }} - 1u - o;
        k{{ i }} = k4 * 4u;
{% else %}
        let o = {{ side.first }} + o4 * 4u;
        k{{ i }} = k4 * 4u;
        o{{ i }} = o;
{% endif %}
        put{{ i }} = k4 * {{ side.outer + side.pad }}u + o4;
        stride{{ i }} = p.{{ side.name }}_stride;
{% if t.guarded and not side.vec and side.along_k %}
        at{{ i }} = s.{{ side.name }} + o * stride{{ i }};
{% elif t.guarded and not side.vec %}
        at{{ i }} = s.{{ side.name }} + k4 * 4u * stride{{ i }};
        advance{{ i }} = {{ t.k }}u * stride{{ i }};
{% elif side.along_k %}
        at{{ i }} = s.{{ side.name }} + o * stride{{ i }} + k4{{ " * 4u" if unit == 1 }};
        advance{{ i }} = {{ t.k // unit }}u;
{% else %}
        at{{ i }} = s.{{ side.name }} + k4 * 4u * stride{{ i }} + o{{ " / 4u" if unit == 4 }};
        advance{{ i }} = {{ t.k }}u * stride{{ i }};
{% endif %}
    }
{% endfor %}
{% for r in range(4) %}
    var r{{ i }}_{{ r }} = vec4<f32>(0.0);
{% endfor %}
{% endmacro %}

{# reads a block's lines. Outside of the matrices nothing is read past them: lines repeat the last one, whose results are
not stored, and are 0 past K #}
{% macro fetch(i, part, t) %}
{% set side = part.side %}
        {{ part.condition }} {
{% for r in range(4) %}
{% set line = "r" ~ i ~ "_" ~ r %}
{% if not t.guarded %}
{% set place = "at" ~ i ~ (" + " ~ r ~ "u * stride" ~ i if r > 0 else "") %}
            {{ line }} = {{ "vec4<f32>(" ~ side.name ~ "[" ~ place ~ "])" if side.vec else "read_" ~ side.name ~ "(" ~ place ~ ", 0u, 4u)" }};
{% elif side.vec %}
{% set outside = "k" ~ i ~ (" >= " if side.along_k else " + " ~ r ~ "u >= ") ~ t.k_end %}
            {
                let outside = {{ outside }};
                let at = select(at{{ i }} + {{ "min(" ~ r ~ "u, last" ~ i ~ ")" if side.along_k else r ~ "u" }} * stride{{ i }}, s.{{ side.name }}, outside);
                {{ line }} = select(vec4<f32>({{ side.name }}[at]), vec4<f32>(0.0), outside);
            }
{% else %}
{% set inner = "k" ~ i ~ ", " ~ t.k_end if side.along_k else "o" ~ i ~ ", " ~ side.limit %}
            {{ line }} = vec4<f32>(0.0);
            if {{ "o" ~ i if side.along_k else "k" ~ i }} + {{ r }}u < {{ side.limit if side.along_k else t.k_end }} {
                {{ line }} = read_{{ side.name }}(at{{ i }} + {{ r }}u * stride{{ i }}, {{ inner }});
            }
{% endif %}
{% endfor %}
        }
{% endmacro %}

{# reads all rounds' blocks, those of the next stage where `step` #}
{% macro fetch_all(rounds, step, t) %}
{% for parts in rounds %}
{% set i = loop.index0 %}
{% if step %}
        at{{ i }} += select(0u, advance{{ i }}, more);
{% if t.guarded %}
        k{{ i }} += select(0u, {{ t.k }}u, more);
{% endif %}
{% endif %}
{% for part in parts %}
{{ fetch(i, part, t) -}}
{% endfor %}
{% endfor %}
{% endmacro %}

{# stores the blocks, in the stage `stage` where there are two; rows are summed where `counts` #}
{% macro stage_all(rounds, counts, t) %}
{% for parts in rounds %}
{% set i = loop.index0 %}
{% set r = "r" ~ i ~ "_" %}
{% for part in parts %}
{% set side = part.side %}
        {{ part.condition }} {
            let to = put{{ i }}{{ " + stage * " ~ side.fours ~ "u" if t.stages == 2 }};
{% for j in range(4) %}
{% set e = "xyzw"[j] %}
{% if side.along_k %}
            tile_{{ side.name }}[to + {{ j * (side.outer // 4) }}u] = vec4<f32>({{ r }}0.{{ e }}, {{ r }}1.{{ e }}, {{ r }}2.{{ e }}, {{ r }}3.{{ e }});
{% else %}
            tile_{{ side.name }}[to + {{ j * (side.outer // 4) }}u] = {{ r }}{{ j }};
{% endif %}
{% endfor %}
{% if t.sums and side.name == "a" %}
{{ add_block(r, counts) -}}
{% endif %}
        }
{% endfor %}
{% endfor %}
{% endmacro %}
