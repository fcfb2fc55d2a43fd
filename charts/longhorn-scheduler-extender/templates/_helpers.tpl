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
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end }}

{{- /* The second kube-scheduler has the cluster's version, without the provider's suffix. */}}
{{- define "extender.kubeSchedulerImage" -}}
{{- $version := regexFind "^v[0-9]+[.][0-9]+[.][0-9]+" .Capabilities.KubeVersion.Version -}}
{{ .Values.secondScheduler.image.repository }}:{{ .Values.secondScheduler.image.tag | default $version }}
{{- end }}
{{- define "extender.kubeSchedulerConfig" -}}
{{ .Files.Get "files/kube-scheduler.yaml" | replace "longhorn-system" .Release.Namespace }}
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
