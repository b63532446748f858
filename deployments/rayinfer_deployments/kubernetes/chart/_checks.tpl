{{/* Parts of checks.yaml. */}}

{{/* The number of bytes that a quantity names. */}}
{{- define "rayinfer.bytes" -}}
{{- $number := regexFind "^[0-9.]+" . }}
{{- $unit := trimPrefix $number . }}
{{- $units := dict "" 1 "k" 1e3 "M" 1e6 "G" 1e9 "T" 1e12 "Ki" 1024 "Mi" 1048576 "Gi" 1073741824 "Ti" 1099511627776 }}
{{- mulf (float64 $number) (get $units $unit | float64) }}
{{- end }}

{{/* What Kubernetes refuses of the tolerations of .settings. */}}
{{- define "rayinfer.checkTolerations" -}}
{{- $place := .place }}
{{- range $index, $toleration := .settings.tolerations }}
{{- $operator := .operator | default "Equal" }}
{{- if and (eq $operator "Exists") .value }}
{{- fail (printf "%s.tolerations.%d: value=%s: operator Exists takes none" $place $index .value) }}
{{- end }}
{{- if and (eq $operator "Equal") (not .key) }}
{{- fail (printf "%s.tolerations.%d: key: operator Equal needs one; for any taint, operator Exists" $place $index) }}
{{- end }}
{{- if and (not (kindIs "invalid" .seconds)) (ne (.effect | default "") "NoExecute") }}
{{- fail (printf "%s.tolerations.%d: seconds=%v: for the effect NoExecute only" $place $index .seconds) }}
{{- end }}
{{- end }}
{{- end }}
