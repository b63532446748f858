{{/* The Ray cluster and Serve's configuration. */}}

{{- define "rayinfer.serveConfig" -}}
proxy_location: EveryNode
http_options: {host: 0.0.0.0, port: 8000, request_timeout_s: {{ .Values.request_timeout_s }}}
{{- if .Values.grpc }}
grpc_options:
  port: 9000
  grpc_servicer_functions: ["rayinfer_deployments.router.grpc_servicer:add_inference_service"]
{{- end }}
logging_config: {encoding: JSON, log_level: WARNING, enable_access_log: false}
applications:
  - name: {{ .Values.name | quote }}
    route_prefix: /
    import_path: rayinfer_deployments.applications:build_llm_app
    {{- $models := list }}
    {{- range $index, $model := .Values.app.models }}
    {{- $model = deepCopy $model }}
    {{- if $.Values.engines_apart }}
    {{- $_ := set $model "resources" (dict (printf "engine-%d" $index) 1) }}
    {{- if and $model.autoscaling (kindIs "invalid" $model.surge_percent) }}
    {{- $_ := set $model "surge_percent" 0 }}
    {{- end }}
    {{- end }}
    {{- $models = append $models $model }}
    {{- end }}
    args: {{- set (set (deepCopy .Values.app) "models" $models) "num_routers" .Values.routers | toYaml | nindent 6 }}
    {{- $limits := include "rayinfer.filled" (dict "defaults" (index .Values.profile_limits .Values.profile) "given" .Values.limits) | fromJson }}
    {{- if $limits }}
    deployments:
      - name: router
        user_config: {{- toYaml $limits | nindent 10 }}
    {{- end }}
{{- end }}

{{- define "rayinfer.health" -}}
wget -T 4 -q -O- http://127.0.0.1:{{ . }} | grep -q success
{{- end }}

{{- define "rayinfer.head" -}}
{{- $root := .root }}
{{- $batches := "" }}
{{- if and .serving $root.Values.app.batches_folder }}
{{- $batches = include "rayinfer.batchesClaim" . }}
{{- end }}
{{- $raylet := include "rayinfer.health" "52365/api/local_raylet_healthz" }}
{{- $ready := printf "%s && %s" $raylet (include "rayinfer.health" "8265/api/gcs_healthz") }}
rayStartParams: {num-cpus: "0", dashboard-host: 0.0.0.0, metrics-export-port: "8080", object-store-memory: "400000000"}
template:
  metadata:
    labels: {{- include "rayinfer.labels" (dict "root" $root "component" "head") | nindent 6 }}
  spec:
    {{- include "rayinfer.pod" . | nindent 4 }}
    automountServiceAccountToken: {{ $root.Values.autoscale_pods }}
    terminationGracePeriodSeconds: 60
    {{- include "rayinfer.machines" (dict "settings" $root.Values.head) | nindent 4 }}
    {{- if not .serving }}
    {{- include "rayinfer.modelLoader" . | nindent 4 }}
    {{- end }}
    containers:
      - name: ray-head
        {{- include "rayinfer.rayContainer" . | nindent 8 }}
        ports:
          - {name: gcs-server, containerPort: 6379}
          - {name: dashboard, containerPort: 8265}
          - {name: client, containerPort: 10001}
          - {name: metrics, containerPort: 8080}
        resources: {{- include "rayinfer.amounts" (dict "cpus" $root.Values.head.cpus "memory" $root.Values.head.memory "gpus" 0) | nindent 10 }}
        livenessProbe: {{- include "rayinfer.probe" (dict "command" $ready "period" 5 "failures" 120) | nindent 10 }}
        readinessProbe: {{- include "rayinfer.probe" (dict "command" $ready "period" 5 "failures" 10) | nindent 10 }}
        volumeMounts:
          {{- include "rayinfer.mounts" . | nindent 10 }}
          {{- if not .serving }}
          {{- include "rayinfer.modelMounts" . | nindent 10 }}
          {{- end }}
          {{- with .batch }}
          - {name: data, mountPath: /data}
          {{- end }}
          {{- if $batches }}
          - name: batches
            mountPath: {{ $root.Values.app.batches_folder | quote }}
            {{- if not $root.Values.storage.batches_claim }}
            subPath: batches
            {{- end }}
          {{- end }}
    volumes:
      {{- include "rayinfer.volumes" (dict "root" $root "shared" "512Mi") | nindent 6 }}
      {{- with $batches }}
      - {name: batches, persistentVolumeClaim: {claimName: {{ quote . }}}}
      {{- end }}
      {{- if not .serving }}
      {{- include "rayinfer.modelVolumes" . | nindent 6 }}
      {{- end }}
      {{- with .batch }}
      - {name: data, persistentVolumeClaim: {claimName: {{ .claim | quote }}}}
      {{- end }}
{{- end }}

{{- define "rayinfer.worker" -}}
{{- $root := .root }}
{{- $group := include "rayinfer.filled" (dict "defaults" $root.Values.defaults.worker "given" .group) | fromJson }}
{{- $labels := dict "root" $root "component" "worker" }}
{{- $raylet := include "rayinfer.health" "52365/api/local_raylet_healthz" }}
{{- $ready := $raylet }}
{{- if .serving }}
{{- $ready = printf "%s && %s" $raylet (include "rayinfer.health" "8000/-/healthz") }}
{{- end }}
{{- $drain := int (include "rayinfer.drain" .) }}
{{- $wait := add $drain 10 }}
groupName: {{ $group.name | quote }}
replicas: {{ $group.pods }}
minReplicas: {{ kindIs "invalid" $group.min_pods | ternary $group.pods $group.min_pods }}
maxReplicas: {{ kindIs "invalid" $group.max_pods | ternary (max 1 (int $group.pods)) $group.max_pods }}
rayStartParams:
  metrics-export-port: "8080"
  object-store-memory: "400000000"
  {{- if $root.Values.engines_apart }}
  {{- $places := list }}
  {{- range $index, $_ := $root.Values.app.models }}
  {{- $places = append $places (printf "\\\"engine-%d\\\": 1" $index) }}
  {{- end }}
  resources: '"{{ printf "{%s}" (join ", " $places) }}"'
  {{- end }}
template:
  metadata:
    labels:
      {{- include "rayinfer.labels" $labels | nindent 6 }}
      {{- with $root.Values.ingress }}
      {{- if .inference_pool }}
      inference.networking.k8s.io/engine-type: vllm
      {{- end }}
      {{- end }}
  spec:
    {{- include "rayinfer.pod" . | nindent 4 }}
    automountServiceAccountToken: false
    terminationGracePeriodSeconds: {{ add $drain 55 }}
    topologySpreadConstraints:
      - maxSkew: 1
        topologyKey: {{ $group.spread_over }}
        whenUnsatisfiable: {{ ternary "DoNotSchedule" "ScheduleAnyway" $group.spread_strictly }}
        labelSelector:
          matchLabels: {{- include "rayinfer.labels" $labels | nindent 12 }}
    {{- include "rayinfer.machines" (dict "settings" $group) | nindent 4 }}
    {{- include "rayinfer.modelLoader" . | nindent 4 }}
    containers:
      - name: ray-worker
        {{- include "rayinfer.rayContainer" . | nindent 8 }}
        ports:
          {{- if .serving }}
          - {name: http, containerPort: 8000}
          {{- if $root.Values.grpc }}
          - {name: grpc, containerPort: 9000}
          {{- end }}
          {{- end }}
          - {name: metrics, containerPort: 8080}
        resources: {{- include "rayinfer.amounts" $group | nindent 10 }}
        lifecycle:
          preStop:
            exec:
              command:
                - sh
                - -c
                - >-
                  ray drain-node --reason DRAIN_NODE_REASON_PREEMPTION --reason-message 'the pod ends'
                  --deadline-remaining-seconds {{ $wait }}; sleep 15; for second in $(seq {{ $wait }}); do
                  grep -qsa 'ray::[S]erveReplica' /proc/[0-9]*/cmdline || break; sleep 1; done
        livenessProbe: {{- include "rayinfer.probe" (dict "command" $raylet "period" 5 "failures" 120) | nindent 10 }}
        readinessProbe: {{- include "rayinfer.probe" (dict "command" $ready "period" 2 "failures" 2) | nindent 10 }}
        volumeMounts:
          {{- include "rayinfer.mounts" . | nindent 10 }}
          {{- include "rayinfer.modelMounts" . | nindent 10 }}
          {{- with .batch }}
          - {name: data, mountPath: /data}
          {{- end }}
    volumes:
      {{- include "rayinfer.volumes" (dict "root" $root "shared" $group.shared_memory) | nindent 6 }}
      {{- include "rayinfer.modelVolumes" . | nindent 6 }}
      {{- with .batch }}
      - {name: data, persistentVolumeClaim: {claimName: {{ .claim | quote }}}}
      {{- end }}
{{- end }}

{{- define "rayinfer.cluster" -}}
{{- $root := .root }}
rayVersion: {{ $root.Chart.AppVersion | quote }}
enableInTreeAutoscaling: {{ $root.Values.autoscale_pods }}
{{- if $root.Values.autoscale_pods }}
autoscalerOptions:
  version: v2
  upscalingMode: Default
  idleTimeoutSeconds: 300
  securityContext: {allowPrivilegeEscalation: false, capabilities: {drop: [ALL]}}
{{- end }}
authOptions:
  mode: token
  {{- with $root.Values.auth }}
  {{- with .ray_token_secret }}
  secretName: {{ quote . }}
  {{- end }}
  {{- end }}
{{- if kindIs "map" $root.Values.high_availability }}
{{- $redis := include "rayinfer.filled" (dict "defaults" $root.Values.defaults.high_availability "given" $root.Values.high_availability) | fromJson }}
gcsFaultToleranceOptions:
  redisAddress: {{ $redis.redis_address | default (printf "%s-redis:6379" $root.Values.name) }}
  redisPassword:
    valueFrom:
      secretKeyRef: {name: {{ $redis.redis_password_secret | quote }}, key: password}
{{- end }}
headGroupSpec: {{- include "rayinfer.head" . | nindent 2 }}
workerGroupSpecs:
  {{- range $root.Values.workers }}
  - {{- include "rayinfer.worker" (dict "group" . "root" $root "serving" $.serving "batch" $.batch) | nindent 4 }}
  {{- end }}
{{- end }}
