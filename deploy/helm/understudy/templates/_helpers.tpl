{{- define "understudy.labels" -}}
{{ include "understudy.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- end }}

{{- define "understudy.selector" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "understudy.image" -}}
{{- $tag := .Values.image.tag | default .Chart.AppVersion -}}
{{- with .Values.image.digest }}{{ printf "%s@%s" $.Values.image.repository . }}
{{- else }}{{ printf "%s:%s" .Values.image.repository $tag }}
{{- end }}
{{- end }}

{{/* The StatefulSet of the standby `.standby`; its one pod is called that and `-0`. */}}
{{- define "understudy.set" -}}
{{- $name := printf "%s-%s" .root.Release.Name .standby.name -}}
{{- if gt (len $name) 50 }}{{ fail (printf "standbys: %s is longer than 50 characters: shorten the release's name" $name) }}{{ end -}}
{{- $name -}}
{{- end }}

{{/* The configuration as JSON, once the pods can be what it says. */}}
{{- define "understudy.config" -}}
{{- $config := fromToml .Values.config -}}
{{- with $config.Error }}{{ fail (printf "config: this is no TOML: %s" .) }}{{ end -}}
{{- if not $config }}{{ fail "config: give the agent's configuration, by --set-file config=FILE" }}{{ end -}}
{{- if ne (dig "agent" "host" "" $config) "$(POD_NAME)" }}
{{- fail "config: agent.host: write \"$(POD_NAME)\", so that each pod has a name of its own in the ledger" }}
{{- end -}}
{{- if not (regexMatch "^(0\\.0\\.0\\.0|\\[::\\]):[0-9]+$" (dig "agent" "listen" "" $config)) }}
{{- fail "config: agent.listen: write \"0.0.0.0:9095\" or \"[::]:9095\": the kubelet's probes come from outside the pod" }}
{{- end -}}
{{- $driver := toString (dig "broker_host" "driver" "" $config) }}
{{- if eq $driver "rescheduling" }}
{{- if or .Values.kafka.image .Values.kafka.command .Values.logDirs }}
{{- fail "kafka, logDirs: leave them out with broker_host.driver \"rescheduling\": these pods start no Kafka" }}
{{- end }}
{{- else if eq $driver "kubernetes" }}
{{- if not .Values.kafka.image }}{{ fail "kafka.image: give the image of your brokers" }}{{ end }}
{{- if not .Values.kafka.command }}{{ fail "kafka.command: give what starts Kafka in the foreground" }}{{ end }}
{{- if not .Values.logDirs }}{{ fail "logDirs: give the log dirs of the brokers" }}{{ end }}
{{- else }}
{{- fail "config: broker_host.driver: write \"kubernetes\" (Kafka waits in a container of its own) or \"rescheduling\" (brokers' pods are made anew)" }}
{{- end -}}
{{- range $broker := $config.broker }}
{{- $id := toString $broker.id }}
{{- if ne (dig "storage" "driver" "mounted" $broker) "mounted" }}
{{- fail (printf "config: broker %s: storage.driver: write \"mounted\": the pod may mount nothing, logDirs are there before" $id) }}
{{- end }}
{{- range $.Values.logDirs }}
{{- if and .claim (dig "storage" "grant" false $broker) }}
{{- fail (printf "config: broker %s: storage.grant: the claim %s is mounted before a takeover, when the rules do not let its node in yet: give logDirs as hostPath, or fence by power" $id .claim) }}
{{- end }}
{{- end }}
{{- if and (eq (dig "address" "driver" "" $broker) "kubernetes_service") (ne $broker.address.pod "$(POD_NAME)") }}
{{- fail (printf "config: broker %s: address.pod: write \"$(POD_NAME)\": the Service is to lead to the pod that takes over" $id) }}
{{- end }}
{{- end -}}
{{- toJson $config -}}
{{- end }}

{{/* Not empty where the pods have agents alone, which have brokers' pods made anew. */}}
{{- define "understudy.reschedules" -}}
{{- $config := include "understudy.config" . | fromJson -}}
{{- if eq $config.broker_host.driver "rescheduling" }}yes{{ end -}}
{{- end }}

{{/* A role in `.namespace`, or without one of the cluster, for the account of the pods. */}}
{{- define "understudy.role" -}}
{{- $kind := ternary "Role" "ClusterRole" (not (empty .namespace)) -}}
{{- $of := .name -}}
{{- range .rules }}
{{- /* Without names the rule would be for every object. */ -}}
{{- if and (hasKey . "resourceNames") (empty .resourceNames) }}
{{- fail (printf "config: it names no %s for the role %s: give each [[node]] its name, and each [host.kubernetes] its pod" (first .resources) $of) }}
{{- end }}
{{- end -}}
{{- $name := printf "%s-%s" .root.Release.Name .name -}}
{{- if not .namespace }}{{ $name = printf "%s-%s" .root.Release.Namespace $name }}{{ end -}}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: {{ $kind }}
metadata:
  name: {{ $name }}
  {{- with .namespace }}
  namespace: {{ . }}
  {{- end }}
  labels: {{- include "understudy.labels" .root | nindent 4 }}
rules: {{- toYaml .rules | nindent 2 }}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: {{ $kind }}Binding
metadata:
  name: {{ $name }}
  {{- with .namespace }}
  namespace: {{ . }}
  {{- end }}
  labels: {{- include "understudy.labels" .root | nindent 4 }}
roleRef:
  apiGroup: rbac.authorization.k8s.io
  kind: {{ $kind }}
  name: {{ $name }}
subjects:
  - kind: ServiceAccount
    name: {{ .root.Release.Name }}
    namespace: {{ .root.Release.Namespace }}
{{ end }}

{{/* Where the agent answers. */}}
{{- define "understudy.port" -}}
{{- $config := include "understudy.config" . | fromJson -}}
{{- $config.agent.listen | splitList ":" | last -}}
{{- end }}

{{- define "understudy.scheme" -}}
{{- $config := include "understudy.config" . | fromJson -}}
{{- ternary "HTTPS" "HTTP" (hasKey $config.agent "tls") -}}
{{- end }}

{{/* A container without any right of its own; `.` says whether its root is read-only. */}}
{{- define "understudy.confined" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: {{ . }}
capabilities: {drop: [ALL]}
{{- end }}

{{- define "understudy.logDirMounts" -}}
{{- range $number, $dir := .Values.logDirs }}
- name: log-dir-{{ $number }}
  mountPath: {{ $dir.mountPath }}
  {{- if $dir.hostPath }}
  # What the node mounts there later shows here too.
  mountPropagation: HostToContainer
  {{- end }}
{{- end }}
{{- end }}
