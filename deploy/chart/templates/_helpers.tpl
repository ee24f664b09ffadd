{{/* R: what all names begin with. A Service's begins with a letter and has no dot; a release's name may. */}}
{{- define "grapevine.release" -}}
{{ regexReplaceAll "^[0-9]" .Release.Name "gv-${0}" | replace "." "-" | trunc 40 | trimSuffix "-" }}
{{- end }}

{{/* Labels that selectors use; needs a dict of root and component. They never change. */}}
{{- define "grapevine.selector" -}}
app.kubernetes.io/name: grapevine
app.kubernetes.io/instance: {{ .root.Release.Name | quote }}
app.kubernetes.io/component: {{ .component }}
{{- end }}

{{- define "grapevine.labels" -}}
{{ include "grapevine.selector" . }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .root.Chart.Name .root.Chart.Version | replace "+" "_" }}
{{- end }}

{{/* Reference of an image; needs a dict of root, part (gateway, injector, agent), full and value (the name of full). */}}
{{- define "grapevine.image" -}}
{{- if .full -}}
{{ .full }}
{{- else if .root.Values.image.registry -}}
{{ printf "%s/%s:%s" (.root.Values.image.registry | trimSuffix "/") .part (.root.Values.image.tag | default .root.Chart.AppVersion) }}
{{- else -}}
{{ fail (printf "no image for the %s: give image.registry (REGISTRY/%s:TAG is pulled then) or %s. The chart has no default, so that nothing is pulled that you did not name; `make images` builds them" .part .part .value) }}
{{- end -}}
{{- end }}

{{/* What `restricted` Pod Security wants of a pod and of a container. */}}
{{- define "grapevine.podSecurity" -}}
runAsNonRoot: true
runAsUser: 65532
runAsGroup: 65532
fsGroup: 65532
seccompProfile: {type: RuntimeDefault}
{{- end }}
{{- define "grapevine.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
{{- end }}

{{/* Name of the Secret with gossip key and seed; empty: none. */}}
{{- define "grapevine.keysSecret" -}}
{{- if .Values.keys.existingSecret -}}
{{ .Values.keys.existingSecret }}
{{- else if .Values.keys.create -}}
{{ include "grapevine.release" . }}-keys
{{- end -}}
{{- end }}

{{/* Where agents find the gateways. */}}
{{- define "grapevine.join" -}}
{{ include "grapevine.release" . }}-gossip.{{ .Release.Namespace }}.svc
{{- end }}

{{/* NAMESPACE/NAME of the pools watched, as a JSON list: those listed and those that the chart makes. */}}
{{- define "grapevine.watchedPools" -}}
{{- $pools := list -}}
{{- range .Values.pools.inferencePools -}}
{{- $pools = append $pools (ternary . (printf "%s/%s" $.Release.Namespace .) (contains "/" .)) -}}
{{- end -}}
{{- range .Values.inferencePools -}}
{{- $pools = append $pools (printf "%s/%s" $.Release.Namespace .name) -}}
{{- end -}}
{{ toJson (uniq $pools) }}
{{- end }}

{{/* Ports on which Envoy asks, as a JSON list: an InferencePool has its own, else there is one for all that is watched. */}}
{{- define "grapevine.pickerPorts" -}}
{{- $ports := list -}}
{{- range .Values.inferencePools }}{{ $ports = append $ports (int (.port | default 9002)) }}{{ end -}}
{{- if ne (len $ports) (len (uniq $ports)) -}}
{{- fail "inferencePools: each needs a port of its own: give port (the first may have 9002)" -}}
{{- end -}}
{{- range $ports -}}
{{- if has . (list 7946 8080 9003 9090) -}}
{{- fail (printf "inferencePools: port %d is taken by the gateways themselves (7946, 8080, 9003, 9090): give another" .) -}}
{{- end -}}
{{- end -}}
{{ toJson ($ports | default (list 9002)) }}
{{- end }}

{{/* Names of namespaces as a JSON list: those of the model pods without the release's own. */}}
{{- define "grapevine.otherNamespaces" -}}
{{ toJson (without (uniq (.Values.modelNamespaces | default list)) .Release.Namespace) }}
{{- end }}

{{/*
Settings of the gateways. Numbers of values files arrive as floats and would be written as 1e+09: integers are made
integers again.
*/}}
{{- define "grapevine.config" -}}
{{- $extproc := ne .Values.gateway.mode "proxy" -}}
{{- $config := dict
  "listen" (ternary "" ":8080" (eq .Values.gateway.mode "extproc"))
  "admin-listen" ":9090"
  "drain-wait" (printf "%ds" (int .Values.gateway.drainSeconds))
  "gossip" (dict "join" (list (include "grapevine.join" .))) -}}
{{- with .Values.gateway.models }}{{ $_ := set $config "model" . }}{{ end -}}
{{- if include "grapevine.keysSecret" . -}}
{{- $_ := set $config.gossip "key-file" "/etc/grapevine/keys/gossip.key" -}}
{{- $_ := set $config "seed-file" "/etc/grapevine/keys/seed" -}}
{{- end -}}
{{- $pools := include "grapevine.watchedPools" . | fromJsonArray -}}
{{- $kubernetes := dict -}}
{{- if $pools }}{{ $_ := set $kubernetes "inference-pools" $pools }}{{ end -}}
{{- with .Values.pools.services }}{{ $_ := set $kubernetes "services" . }}{{ end -}}
{{- if .Values.pools.objectives }}{{ $_ := set $kubernetes "objectives" true }}{{ end -}}
{{- if $kubernetes }}{{ $_ := set $config "kubernetes" $kubernetes }}{{ end -}}
{{- if $extproc -}}
{{- $listen := list ":9002" -}}
{{- if .Values.inferencePools -}}
{{- $listen = list -}}
{{- range .Values.inferencePools }}{{ $listen = append $listen (printf "%s/%s=:%d" $.Release.Namespace .name (int (.port | default 9002))) }}{{ end -}}
{{- end -}}
{{- $e := dict "listen" $listen "health-listen" ":9003" -}}
{{- if .Values.extProc.tlsSecret -}}
{{- $_ := set $e "cert-file" "/etc/grapevine/tls/tls.crt" -}}
{{- $_ := set $e "key-file" "/etc/grapevine/tls/tls.key" -}}
{{- end -}}
{{- $_ := set $config "ext-proc" $e -}}
{{- end -}}
{{- $own := .Values.gateway.config | default dict -}}
{{- range list "listen" "admin-listen" -}}
{{- if and (hasKey $own .) (ne (get $own .) (get $config .)) -}}
{{- fail (printf "gateway.config: %s is the chart's (%q): Services, probes and policies go by it; for clients there is gateway.service.port" . (get $config .)) -}}
{{- end -}}
{{- end -}}
{{- $config = mergeOverwrite $config (deepCopy $own) -}}
{{- include "grapevine.integers" $config -}}
{{ toYaml $config }}
{{- end }}

{{- define "grapevine.integers" -}}
{{- $m := . -}}
{{- range $k, $v := $m -}}
{{- if kindIs "map" $v -}}
{{- include "grapevine.integers" $v -}}
{{- else if kindIs "float64" $v -}}
{{- if eq $v (float64 (int64 $v)) }}{{ $_ := set $m $k (int64 $v) }}{{ end -}}
{{- end -}}
{{- end -}}
{{- end }}

{{/* Refuses a list of things of which two have one name and namespace; needs a dict of what, list and namespace (of those that give none). */}}
{{- define "grapevine.distinct" -}}
{{- $seen := list -}}
{{- range .list -}}
{{- $name := printf "%s/%s" (.namespace | default $.namespace) .name -}}
{{- if has $name $seen -}}
{{- fail (printf "%s: two are named %s: give each a name of its own" $.what .name) -}}
{{- end -}}
{{- $seen = append $seen $name -}}
{{- end -}}
{{- end }}

{{/* Scheduling values that gateway and injector share. */}}
{{- define "grapevine.scheduling" -}}
{{- with .affinity }}
affinity: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .nodeSelector }}
nodeSelector: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .tolerations }}
tolerations: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .priorityClassName }}
priorityClassName: {{ . | quote }}
{{- end }}
{{- end }}
