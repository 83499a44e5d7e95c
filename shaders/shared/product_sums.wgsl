{% from "shared/units.wgsl" import put, read %}
{#
Sums of A's rows over k, which matmul.wgsl and matmul_units.wgsl make on the way of what they fetch for a product. An
invocation holds sums of four rows at a time; at the end of a tile these are added in turn in workgroup memory and, where
it is of the first column of tiles, stored.

`a` is the operand, `t` says how a stage is fetched, both as src/kernel/matmul/source.rs makes them. In matmul.wgsl an
invocation always fetches the same four rows, whose sums are `row_sum`. On units it reads `t.step` numbers at once, which
are of the same rows after each `a.period` fetches: it holds row_sum{fetch}_{part}.
#}
{% macro hold_on_units(a, t) %}
{% for i in range([a.period, a.fetches]|min) %}
{% for part in range(t.step // 4) %}
    var row_sum{{ i }}_{{ part }} = vec4<f32>(0.0);
{% endfor %}
{% endfor %}
{% endmacro %}

{# adds what the fetch number i has brought #}
{% macro add_on_units(i, a, t) %}
{% if t.eights %}
            row_sum{{ i % a.period }}_0 += vec4<f32>(unpack2x16float(ra{{ i }}.x), unpack2x16float(ra{{ i }}.y));
            row_sum{{ i % a.period }}_1 += vec4<f32>(unpack2x16float(ra{{ i }}.z), unpack2x16float(ra{{ i }}.w));
{% else %}
            row_sum{{ i % a.period }}_0 += vec4<f32>(ra{{ i }});
{% endif %}
{% endmacro %}

{# adds the block of four rows by four k that is in `lines`0 to 3, where `counts` #}
{% macro add_block(lines, counts) %}
{% set four = "(" ~ lines ~ "0 + " ~ lines ~ "1) + (" ~ lines ~ "2 + " ~ lines ~ "3)" %}
            row_sum += {{ "select(vec4<f32>(0.0), " ~ four ~ ", " ~ counts ~ ")" if counts else four }};
{% endmacro %}

{# stores the sums of an invocation's four rows, `all` #}
{% macro store_four() %}
            let row = row0 + lane * 4u;
            finish_sum(s, row, all.x);
            finish_sum(s, row + 1u, all.y);
            finish_sum(s, row + 2u, all.z);
            finish_sum(s, row + 3u, all.w);
{% endmacro %}

{# adds up all sums that are held and stores them, by way of the array of A's stages #}
{% macro finish(a, t) %}
{% set blocks = a.outer * t.k // 16 %}
{% set holders = t.threads if t.threads < blocks else blocks %}
    if col0 == 0u {
{% if t.stages == 2 %}
        workgroupBarrier();
{% endif %}
        // nothing reads the last stage any more
        if lane < {{ holders }}u {
            tile_a[lane] = row_sum;
        }
        workgroupBarrier();
        if lane < {{ a.outer // 4 }}u {
            var all = tile_a[lane];
{% for i in range(1, holders // (a.outer // 4)) %}
            all += tile_a[lane + {{ i * (a.outer // 4) }}u];
{% endfor %}
{{ store_four() }}
        }
    }
{% endmacro %}

{# the same on units, by way of the array of a matrix of each subgroup: as many vec4s at a time as it has room for, which
are in turn of the same rows after each a.outer // 4 #}
{% macro finish_on_units(a, t, u) %}
{% set held = [t.threads * a.period * t.step, a.outer * t.k]|min // 4 %}
{% set room = t.threads // u.lanes * (u.side * u.side // 4) // (a.outer // 4) * (a.outer // 4) %}
    if col0 == 0u {
        workgroupBarrier();
        var all = vec4<f32>(0.0);
{% for start in range(0, held, room) %}
{% set end = [start + room, held]|min %}
{% for i in range([a.period, a.fetches]|min) %}
{% for part in range(t.step // 4) %}
        {
            let at = (lane + {{ i * t.threads }}u) * {{ t.step // 4 }}u + {{ part }}u;
            if at >= {{ start }}u && at < {{ end }}u {
                {{ put("sums_of", "at - " ~ start ~ "u", "row_sum" ~ i ~ "_" ~ part, u) }}
            }
        }
{% endfor %}
{% endfor %}
        workgroupBarrier();
        if lane < {{ a.outer // 4 }}u {
{% for i in range(0, end - start, a.outer // 4) %}
            all += {{ read("sums_of", "f32", "lane + " ~ i ~ "u", u) }};
{% endfor %}
        }
        workgroupBarrier();
{% endfor %}
        if lane < {{ a.outer // 4 }}u {
{{ store_four() }}
        }
    }
{% endmacro %}
