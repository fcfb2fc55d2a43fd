{{- /* The labels of an object: the chart, and the part and the program of the product that it belongs to. */}}
{{- define "extender.labels" -}}
{{- $chart := (index . 0).Chart -}}
app.kubernetes.io/name: {{ index . 2 }}
app.kubernetes.io/component: {{ index . 1 }}
app.kubernetes.io/instance: {{ (index . 0).Release.Name }}
app.kubernetes.io/managed-by: {{ (index . 0).Release.Service }}
app.kubernetes.io/version: {{ $chart.AppVersion | quote }}
helm.sh/chart: {{ printf "%s-%s" $chart.Name $chart.Version | replace "+" "_" }}
{{- end }}

{{- /* The image of all pods. */}}
{{- define "extender.image" -}}
{{- with .Values.global.cattle.systemDefaultRegistry }}{{ . | trimSuffix "/" }}/{{ end -}}
{{ .Values.image.repository }}:{{ .Values.image.tag }}
{{- end }}

{{- /* The version of MutatingAdmissionPolicy that the cluster has. Without a cluster no kind is known, but a version is given. */}}
{{- define "extender.mutatingPolicies" -}}
{{- $versions := .Capabilities.APIVersions -}}
{{- $group := "admissionregistration.k8s.io" -}}
{{- if $versions.Has (printf "%s/v1/MutatingAdmissionPolicy" $group) -}}
{{ $group }}/v1
{{- else if $versions.Has (printf "%s/v1beta1/MutatingAdmissionPolicy" $group) -}}
{{ $group }}/v1beta1
{{- else if $versions.Has "v1/Pod" -}}
{{- fail "the cluster has no MutatingAdmissionPolicy: it needs Kubernetes 1.36, or 1.34 and 1.35 with its v1beta1 switched on; docs/kube-scheduler.md has other ways" -}}
{{- else -}}
{{ $group }}/{{ semverCompare ">=1.36-0" .Capabilities.KubeVersion.Version | ternary "v1" "v1beta1" }}
{{- end }}
{{- end }}

{{- /* The second kube-scheduler has the cluster's version, without the provider's suffix. */}}
{{- define "extender.kubeSchedulerImage" -}}
{{- $version := regexFind "^v[0-9]+[.][0-9]+[.][0-9]+" .Capabilities.KubeVersion.Version -}}
{{ .Values.secondScheduler.image.repository }}:{{ .Values.secondScheduler.image.tag | default $version }}
{{- end }}
{{- define "extender.kubeSchedulerConfig" -}}
{{- $config := .Files.Get "files/kube-scheduler.yaml" | replace "longhorn-system" .Release.Namespace -}}
{{- if .Values.tls.enabled -}}
{{- $tls := include "extender.kubeSchedulerTLS" . | nindent 4 -}}
{{ $config | replace "urlPrefix: http:" "urlPrefix: https:" | replace "\n    enableHTTPS: false" $tls }}
{{- else -}}
{{ $config }}
{{- end }}
{{- end }}
{{- define "extender.kubeSchedulerTLS" -}}
enableHTTPS: true
tlsConfig:
  serverName: {{ include "extender.serverName" . }}
  caFile: /etc/longhorn-scheduler-extender-client/ca.crt
  certFile: /etc/longhorn-scheduler-extender-client/tls.crt
  keyFile: /etc/longhorn-scheduler-extender-client/tls.key
{{- end }}

{{- /* The name in the extender's certificate, which callers verify. */}}
{{- define "extender.serverName" -}}
longhorn-scheduler-extender.{{ .Release.Namespace }}.svc
{{- end }}

{{- /* Where the extender's certificate is. */}}
{{- define "extender.tlsSecret" -}}
{{- if and .Values.tls.secretName .Values.tls.certManager.enabled -}}
{{- fail "tls.secretName names a Secret of yours, and tls.certManager.enabled makes another one: set one of them" -}}
{{- end -}}
{{ .Values.tls.secretName | default "longhorn-scheduler-extender-tls" }}
{{- end }}

{{- /* Prometheus shows the certificate that callers have: docs/tls.md. */}}
{{- define "extender.scrapeTLS" -}}
{{- if .Values.tls.enabled -}}
scheme: https
tlsConfig:
  serverName: {{ include "extender.serverName" . }}
  ca: {secret: {name: longhorn-scheduler-extender-client, key: ca.crt}}
  cert: {secret: {name: longhorn-scheduler-extender-client, key: tls.crt}}
  keySecret: {name: longhorn-scheduler-extender-client, key: tls.key}
{{- end }}
{{- end }}

{{- /* The arguments of the extender's container. */}}
{{- define "extender.args" -}}
{{- $args := list "serve" "--host" "::" "--port" "9504" -}}
{{- if .Values.tls.enabled -}}
{{- $folder := "/etc/longhorn-scheduler-extender-tls" -}}
{{- $files := dict "tls-cert-file" "tls.crt" "tls-private-key-file" "tls.key" "client-ca-file" "ca.crt" -}}
{{- range $flag := list "tls-cert-file" "tls-private-key-file" "client-ca-file" -}}
{{- $args = append $args (printf "--%s=%s/%s" $flag $folder (get $files $flag)) -}}
{{- end -}}
{{- $args = append $args "--probe-port=9508" -}}
{{- end -}}
{{- toYaml (concat $args .Values.extraArgs) }}
{{- end }}

{{- /* What every pod of the restricted Pod Security Standard needs. */}}
{{- define "extender.podSecurityContext" -}}
runAsNonRoot: true
runAsUser: 65532
runAsGroup: 65532
seccompProfile:
  type: RuntimeDefault
{{- end }}
{{- define "extender.securityContext" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
{{- end }}
