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

{{/* An update strategy; the default rollingUpdate is left out of one of another type, which may not have it. */}}
{{- define "hawser.updateStrategy" -}}
{{- if eq (.type | default "RollingUpdate") "RollingUpdate" }}{{ toYaml . }}{{ else }}{{ toYaml (omit . "rollingUpdate") }}{{ end -}}
{{- end -}}

{{/* Whether slices are made without CiliumEndpoints: "true" or nothing. */}}
{{- define "hawser.slim" -}}
{{- with .Values.ciliumEndpointSlice }}{{ if and .enabled (eq .mode "slim") }}true{{ end }}{{ end -}}
{{- end -}}

{{/* Whether agents and operator may agree on the labels that make identities: "true" or nothing. They keep the rights when the option is taken back, to do so in order. */}}
{{- define "hawser.narrow" -}}
{{- if and (ne .Values.identity.managementMode "agent") (eq .Values.identity.allocationMode "crd") }}true{{ end -}}
{{- end -}}

{{/* Where an agent serves the list of nodes to the relay, and where the relay is found. */}}
{{- define "hawser.peerService" -}}
hubble-peer.{{ .Release.Namespace }}.svc.{{ .Values.hubble.peerService.clusterDomain }}:{{ ternary 443 80 .Values.hubble.tls.enabled }}
{{- end }}
{{- define "hawser.relayService" -}}
hubble-relay.{{ .Release.Namespace }}.svc.{{ .Values.hubble.peerService.clusterDomain }}:{{ ternary 443 80 .Values.hubble.relay.tls.server.enabled }}
{{- end }}

{{/* What agents serve to a relay: "true" or nothing. */}}
{{- define "hawser.servesFlows" -}}
{{- if and .Values.hubble.enabled .Values.hubble.relay.enabled }}true{{ end -}}
{{- end -}}

{{/* The security context of what needs nothing of its node. */}}
{{- define "hawser.confined" -}}
runAsNonRoot: true
runAsUser: 65532
runAsGroup: 65532
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
seccompProfile: {type: RuntimeDefault}
{{- end }}
