{{/* Parts of pods. Each takes (dict "root" $ ...). */}}

{{/* A mapping with defaults where it lacks a name, as JSON; Helm's own merge takes false and 0 for missing. */}}
{{- define "rayinfer.filled" -}}
{{- $filled := dict }}
{{- range $name, $value := .defaults }}
{{- $_ := set $filled $name $value }}
{{- end }}
{{- range $name, $value := .given }}
{{- $_ := set $filled $name $value }}
{{- end }}
{{- toJson $filled }}
{{- end }}

{{- define "rayinfer.labels" -}}
app.kubernetes.io/name: rayinfer
app.kubernetes.io/instance: {{ .root.Values.name | quote }}
app.kubernetes.io/component: {{ .component }}
{{- end }}

{{- define "rayinfer.drain" -}}
{{- $longest := 0 }}
{{- range .root.Values.app.models }}
{{- $longest = max $longest (int (dig "drain_timeout_s" 120 .)) }}
{{- end }}
{{- $longest }}
{{- end }}

{{/* A model's engine settings as options, as a JSON list. */}}
{{- define "rayinfer.engineOptions" -}}
{{- $model := first .root.Values.app.models }}
{{- $options := list }}
{{- range .root.Values.engine_settings }}
{{- $value := get $model . }}
{{- $option := replace "_" "-" . }}
{{- if and (hasKey $model .) (not (kindIs "invalid" $value)) }}
{{- if kindIs "bool" $value }}
{{- $options = append $options (printf "--%s%s" (ternary "" "no-" $value) $option) }}
{{- else }}
{{- $options = concat $options (list (printf "--%s" $option) (kindIs "string" $value | ternary $value (toJson $value))) }}
{{- end }}
{{- end }}
{{- end }}
{{- toJson $options }}
{{- end }}

{{/* A command for a shell. */}}
{{- define "rayinfer.shell" -}}
{{- range $index, $word := . }}
{{- if $index }} {{ end }}
{{- if regexMatch "^[A-Za-z0-9_@%+=:,./-]+$" $word }}{{ $word }}{{ else }}'{{ replace "'" "'\"'\"'" $word }}'{{ end }}
{{- end }}
{{- end }}

{{- define "rayinfer.machines" -}}
{{- with .group.node_selector }}
nodeSelector: {{ toJson . }}
{{- end }}
{{- if .group.gpus }}
tolerations:
  - {key: nvidia.com/gpu, operator: Exists, effect: NoSchedule}
{{- end }}
{{- end }}

{{- define "rayinfer.pullSecrets" -}}
{{- with .root.Values.image_pull_secrets }}
imagePullSecrets:
  {{- range . }}
  - name: {{ quote . }}
  {{- end }}
{{- end }}
{{- end }}

{{- define "rayinfer.keys" -}}
{{- if kindIs "map" .root.Values.auth }}
{{- $auth := include "rayinfer.filled" (dict "defaults" .root.Values.defaults.auth "given" .root.Values.auth) | fromJson }}
- name: RAYINFER_API_KEYS
  valueFrom:
    secretKeyRef: {name: {{ $auth.api_keys_secret | quote }}, key: keys}
{{- end }}
{{- end }}

{{- define "rayinfer.environment" -}}
{{- range index .root.Values.environments .root.Values.profile }}
- {name: {{ .name }}, value: {{ .value | quote }}}
{{- end }}
{{- include "rayinfer.keys" . }}
{{- end }}

{{- define "rayinfer.containerSecurity" -}}
allowPrivilegeEscalation: false
capabilities: {drop: [ALL]}
readOnlyRootFilesystem: true
{{- end }}

{{- define "rayinfer.podSecurity" -}}
runAsNonRoot: true
runAsUser: 10001
runAsGroup: 10001
fsGroup: 10001
seccompProfile: {type: RuntimeDefault}
{{- end }}

{{- define "rayinfer.amounts" -}}
{{- range list "requests" "limits" }}
{{ . }}:
  cpu: {{ $.cpus | toString | quote }}
  memory: {{ $.memory | quote }}
  {{- with $.gpus }}
  nvidia.com/gpu: {{ . | toString | quote }}
  {{- end }}
{{- end }}
{{- end }}

{{- define "rayinfer.probe" -}}
exec:
  command: [sh, -c, {{ .command | quote }}]
initialDelaySeconds: 10
periodSeconds: {{ .period }}
timeoutSeconds: 10
failureThreshold: {{ .failures }}
{{- end }}

{{- define "rayinfer.mounts" -}}
- {name: shared-mem, mountPath: /dev/shm}
- {name: tmp, mountPath: /tmp}
- {name: home, mountPath: /home/rayinfer}
{{- end }}

{{- define "rayinfer.volumes" -}}
- {name: shared-mem, emptyDir: {medium: Memory, sizeLimit: {{ .shared | quote }}}}
- {name: tmp, emptyDir: {}}
- {name: home, emptyDir: {sizeLimit: {{ .root.Values.storage.cache_size | quote }}}}
{{- end }}

{{- define "rayinfer.modelMounts" -}}
{{- if ne .root.Values.storage.kind "cache" }}
- {name: models, mountPath: /models, readOnly: true}
{{- end }}
{{- end }}

{{- define "rayinfer.modelVolumes" -}}
{{- $storage := .root.Values.storage }}
{{- if eq $storage.kind "pvc" }}
- name: models
  persistentVolumeClaim:
    claimName: {{ $storage.claim | default (printf "%s-models" .root.Values.name) | quote }}
    readOnly: true
{{- else if eq $storage.kind "init" }}
- {name: models, emptyDir: {sizeLimit: {{ $storage.cache_size | quote }}}}
{{- else if eq $storage.kind "bucket" }}
- name: models
  csi:
    driver: {{ $storage.csi_driver | quote }}
    readOnly: true
    {{- with $storage.csi_attributes }}
    volumeAttributes: {{ toJson . }}
    {{- end }}
{{- end }}
{{- end }}

{{- define "rayinfer.modelLoader" -}}
{{- if eq .root.Values.storage.kind "init" }}
initContainers:
  - name: load-models
    image: {{ .root.Values.image | quote }}
    command: {{ toJson .root.Values.storage.init_command }}
    env:
      - {name: HOME, value: /home/rayinfer}
    resources: {{- include "rayinfer.amounts" (dict "cpus" 1 "memory" "2Gi" "gpus" 0) | nindent 6 }}
    securityContext: {{- include "rayinfer.containerSecurity" . | nindent 6 }}
    volumeMounts:
      - {name: models, mountPath: /models}
      - {name: tmp, mountPath: /tmp}
      - {name: home, mountPath: /home/rayinfer}
{{- end }}
{{- end }}

{{- define "rayinfer.pod" -}}
securityContext: {{- include "rayinfer.podSecurity" . | nindent 2 }}
enableServiceLinks: false
{{- include "rayinfer.pullSecrets" . }}
{{- end }}
