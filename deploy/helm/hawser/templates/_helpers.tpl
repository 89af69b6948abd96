{{- define "hawser.labels" -}}
app.kubernetes.io/part-of: hawser
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- end }}

{{- define "hawser.image" -}}
{{ .Values.image.repository }}:{{ .Values.image.tag }}
{{- end }}

{{/* Environment that both programs need. */}}
{{- define "hawser.env" -}}
- name: K8S_NODE_NAME
  valueFrom: {fieldRef: {fieldPath: spec.nodeName}}
- name: CILIUM_K8S_NAMESPACE
  valueFrom: {fieldRef: {fieldPath: metadata.namespace}}
{{- if .Values.k8s.serviceHost }}
- name: KUBERNETES_SERVICE_HOST
  value: {{ .Values.k8s.serviceHost | quote }}
- name: KUBERNETES_SERVICE_PORT
  value: {{ .Values.k8s.servicePort | quote }}
{{- end }}
{{- end }}

{{/* Whether slices are made without CiliumEndpoints: "true" or nothing. */}}
{{- define "hawser.slim" -}}
{{- with .Values.ciliumEndpointSlice }}{{ if and .enabled (eq .mode "slim") }}true{{ end }}{{ end -}}
{{- end -}}

{{/* Whether agents and operator may agree on the labels that make identities: "true" or nothing. They keep the rights when the option is taken back, to do so in order. */}}
{{- define "hawser.narrow" -}}
{{- if and (ne .Values.identity.managementMode "agent") (eq .Values.identity.allocationMode "crd") }}true{{ end -}}
{{- end -}}
