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

{{- define "rayinfer.image" -}}
{{- $image := "rayinfer:cpu" }}
{{- range .root.Values.workers }}
{{- if .gpus }}
{{- $image = "rayinfer:cuda" }}
{{- end }}
{{- end }}
{{- .root.Values.image | default $image | quote }}
{{- end }}

{{/* Which nodes take a pod, and how: of .settings, the head's or a group's. */}}
{{- define "rayinfer.machines" -}}
{{- include "rayinfer.nodes" . }}
{{- include "rayinfer.classes" . | nindent 0 }}
{{- end }}

{{- define "rayinfer.nodes" -}}
{{- with .settings.node_selector }}
nodeSelector: {{ toJson . }}
{{- end }}
{{- if or .settings.gpus .settings.tolerations }}
tolerations:
  {{- if .settings.gpus }}
  - {key: nvidia.com/gpu, operator: Exists, effect: NoSchedule}
  {{- end }}
  {{- range .settings.tolerations }}
  - operator: {{ .operator | default "Equal" }}
    {{- with .key }}
    key: {{ quote . }}
    {{- end }}
    {{- with .value }}
    value: {{ quote . }}
    {{- end }}
    {{- with .effect }}
    effect: {{ . }}
    {{- end }}
    {{- if not (kindIs "invalid" .seconds) }}
    tolerationSeconds: {{ int64 .seconds }}
    {{- end }}
  {{- end }}
{{- end }}
{{- end }}

{{- define "rayinfer.classes" -}}
{{- with .settings.priority_class }}
priorityClassName: {{ quote . }}
{{- end }}
{{- with .settings.runtime_class }}
runtimeClassName: {{ quote . }}
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

{{- define "rayinfer.ownEnvironment" -}}
{{- range $name, $value := .root.Values.env }}
- {name: {{ $name | quote }}, value: {{ $value | quote }}}
{{- end }}
{{- if kindIs "map" .root.Values.auth }}
{{- $auth := include "rayinfer.filled" (dict "defaults" .root.Values.defaults.auth "given" .root.Values.auth) | fromJson }}
- name: RAYINFER_API_KEYS
  valueFrom:
    secretKeyRef: {name: {{ $auth.api_keys_secret | quote }}, key: keys}
{{- end }}
{{- end }}

{{- define "rayinfer.homeEnvironment" -}}
- {name: HOME, value: /home/rayinfer}
- {name: RAYINFER_CACHE, value: /home/rayinfer/.cache/rayinfer}
{{- end }}

{{/* Image and environment of a container: the variables of .env before the service's own. */}}
{{- define "rayinfer.container" -}}
image: {{ include "rayinfer.image" . }}
env:
  {{- .env | nindent 2 }}
  {{- include "rayinfer.ownEnvironment" . | nindent 2 }}
{{- with .root.Values.env_secrets }}
envFrom:
  {{- range . }}
  - secretRef: {name: {{ quote . }}}
  {{- end }}
{{- end }}
securityContext: {{- include "rayinfer.containerSecurity" . | nindent 2 }}
{{- end }}

{{- define "rayinfer.rayContainer" -}}
{{- include "rayinfer.container" (dict "root" .root "env" (toYaml (index .root.Values.environments .root.Values.profile))) }}
{{- end }}

{{- define "rayinfer.containerSecurity" -}}
allowPrivilegeEscalation: false
capabilities: {drop: [ALL]}
readOnlyRootFilesystem: true
{{- end }}

{{- define "rayinfer.podSecurity" -}}
{{- include "rayinfer.userSecurity" . }}
fsGroup: 10001
{{- end }}

{{- define "rayinfer.userSecurity" -}}
runAsNonRoot: true
runAsUser: 10001
runAsGroup: 10001
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

{{- define "rayinfer.modelsClaim" -}}
{{- .root.Values.storage.claim | default (printf "%s-models" .root.Values.name) }}
{{- end }}

{{/* The claim of files and batches; empty where they lie in the head's pod. */}}
{{- define "rayinfer.batchesClaim" -}}
{{- $of_models := eq .root.Values.storage.kind "pvc" | ternary (include "rayinfer.modelsClaim" .) "" }}
{{- .root.Values.storage.batches_claim | default $of_models }}
{{- end }}

{{- define "rayinfer.modelVolumes" -}}
{{- $storage := .root.Values.storage }}
{{- if eq $storage.kind "pvc" }}
- name: models
  persistentVolumeClaim:
    claimName: {{ include "rayinfer.modelsClaim" . | quote }}
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
    {{- include "rayinfer.container" (dict "root" .root "env" "- {name: HOME, value: /home/rayinfer}") | nindent 4 }}
    command: {{ toJson .root.Values.storage.init_command }}
    resources: {{- include "rayinfer.amounts" (dict "cpus" 1 "memory" "2Gi" "gpus" 0) | nindent 6 }}
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
