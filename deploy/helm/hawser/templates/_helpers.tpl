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

{{/* Whether agents serve metrics of flows: "true" or nothing. */}}
{{- define "hawser.flowMetrics" -}}
{{- if and .Values.hubble.enabled .Values.hubble.metrics.enabled }}true{{ end -}}
{{- end -}}

{{/* Further arguments of every agent; helm reads --set agent.extraArgs={} as one empty argument. */}}
{{- define "hawser.agentArgs" -}}
{{- range compact .Values.agent.extraArgs }}
- {{ . | quote }}
{{- end }}
{{- end -}}

{{/* Environment of every agent: where hawser, started in its container, finds its sockets if they are not at the usual place. */}}
{{- define "hawser.agentEnv" -}}
{{- include "hawser.env" . }}
{{- $extra := .Values.extraConfig | default dict }}
{{- $socket := get $extra "socket-path" | default (printf "%s/cilium.sock" .Values.agent.stateDir) }}
{{- if ne $socket "/var/run/cilium/cilium.sock" }}
- name: CILIUM_SOCK
  value: {{ $socket | quote }}
{{- end }}
{{- $flows := get $extra "hubble-socket-path" | default (printf "%s/hubble.sock" .Values.agent.stateDir) }}
{{- if ne $flows "/var/run/cilium/hubble.sock" }}
- name: HUBBLE_SERVER
  value: {{ printf "unix://%s" $flows | quote }}
{{- end }}
{{- with .Values.agent.extraEnv }}{{ toYaml . | nindent 0 }}{{ end }}
{{- end }}

{{/* Mounts of agents and operator: access to the key-value store, by the Secret "secret", and those of the program's values, "of". */}}
{{- define "hawser.moreMounts" -}}
{{- if .secret }}
- {name: kvstore, mountPath: /var/lib/cilium/kvstore, readOnly: true}
{{- end }}
{{- with .of.extraVolumeMounts }}{{ toYaml . | nindent 0 }}{{ end }}
{{- end -}}

{{/* The volumes for them; files of the Secret have this "mode". */}}
{{- define "hawser.moreVolumes" -}}
{{- with .secret }}
- {name: kvstore, secret: {secretName: {{ . }}, defaultMode: {{ $.mode }}}}
{{- end }}
{{- with .of.extraVolumes }}{{ toYaml . | nindent 0 }}{{ end }}
{{- end -}}

{{/* The ports at which every agent serves metrics, if it does. */}}
{{- define "hawser.agentPorts" -}}
{{- if or .Values.prometheus.agent.enabled (include "hawser.flowMetrics" .) }}
ports:
{{- if .Values.prometheus.agent.enabled }}
  - {name: prometheus, containerPort: {{ .Values.prometheus.agent.port }}, hostPort: {{ .Values.prometheus.agent.port }}, protocol: TCP}
{{- end }}
{{- if include "hawser.flowMetrics" . }}
  - {name: hubble-metrics, containerPort: {{ .Values.hubble.metrics.port }}, hostPort: {{ .Values.hubble.metrics.port }}, protocol: TCP}
{{- end }}
{{- end }}
{{- end -}}

{{/* Fails with what the programs would refuse only when they start. It is called with the root and all options, "config". */}}
{{- define "hawser.check" -}}
{{- $v := .root.Values }}
{{- $config := .config }}
{{- $kept := get $config "identity-allocation-mode" | toString }}
{{- $made := get $config "identity-management-mode" | toString }}
{{- if and (eq (get $config "enable-ipv4" | toString) "false") (eq (get $config "enable-ipv6" | toString) "false") }}
{{- fail "ipv4.enabled and ipv6.enabled are both false: pods would have no address" }}
{{- end }}
{{- if and (ne $kept "crd") (not (get $config "kvstore")) }}
{{- fail (printf "identity.allocationMode=%s: identities are kept in a key-value store: set kvstore.type and kvstore.options" $kept) }}
{{- end }}
{{- if and (hasPrefix "doublewrite-" $kept) (ne $made "agent") }}
{{- fail (printf "identity.allocationMode=%s: agents make identities in both places: set identity.managementMode=agent" $kept) }}
{{- end }}
{{- if eq (get $config "identity-relevant-labels" | toString) "policy" }}
{{- if eq $made "agent" }}
{{- fail "identity.relevantLabels=policy: one program must decide which labels count: set identity.managementMode=operator or both" }}
{{- end }}
{{- if or (ne $kept "crd") (get $config "kvstore") $v.clustermesh.store.type }}
{{- fail "identity.relevantLabels=policy: who reads identities from a key-value store cannot see which labels make them: set identity.allocationMode=crd, and leave out kvstore.type and clustermesh.store.type" }}
{{- end }}
{{- if get $config "clustermesh-config" }}
{{- fail "identity.relevantLabels=policy: other clusters make identities by other labels: leave out cluster.id" }}
{{- end }}
{{- if include "hawser.slim" .root }}
{{- fail "identity.relevantLabels=policy: agents publish the identities of pods by CiliumEndpoints: set ciliumEndpointSlice.mode=default" }}
{{- end }}
{{- end }}
{{- $mode := get $config "bpf-lb-mode" | toString }}
{{- if and (has $mode (list "dsr" "hybrid")) (ne (get $config "kube-proxy-replacement" | toString) "true") }}
{{- fail (printf "loadBalancer.mode=%s: without kubeProxyReplacement kube-proxy leads clients from outside: set kubeProxyReplacement=true" $mode) }}
{{- end }}
{{- if eq $v.ipam.mode "crd" }}
{{- if ne (get $config "routing-mode" | toString) "native" }}
{{- fail "ipam.mode=crd: the network leads to each pod's own address, and no tunnel does: set routing.mode=native" }}
{{- end }}
{{- range $f := list "4" "6" }}
{{- if and (ne (get $config (printf "enable-ipv%s" $f) | toString) "false") (ne (get $config (printf "enable-ipv%s-masquerade" $f) | toString) "false") (not (get $config (printf "ipv%s-native-routing-cidr" $f))) }}
{{- fail (printf "ipam.mode=crd: pods of other nodes are in no pod CIDR: set routing.ipv%sNativeCIDR to where packets are not masqueraded, or masquerade.ipv%s=false" $f $f) }}
{{- end }}
{{- end }}
{{- end }}
{{- $max := get $config "max-connected-clusters" | default 255 | int }}
{{- if not (has $max (list 255 511)) }}{{ fail (printf "extraConfig.max-connected-clusters=%d: it can be 255 or 511" $max) }}{{ end }}
{{- if gt (get $config "cluster-id" | int) $max }}
{{- fail (printf "cluster.id=%v: it is at most %d: for more clusters set extraConfig.max-connected-clusters=511 in all of them, before there are pods" (get $config "cluster-id") $max) }}
{{- end }}
{{- range $f := list "4" "6" }}
{{- $bits := get $config (printf "cluster-pool-ipv%s-mask-size" $f) | int }}
{{- range splitList "," (get $config (printf "cluster-pool-ipv%s-cidr" $f) | toString) }}
{{- if and $bits (gt (splitList "/" . | last | int) $bits) }}{{ fail (printf "ipam.clusterPool.ipv%sMaskSize=%d: the range %s is smaller than the block of a node" $f $bits .) }}{{ end }}
{{- end }}
{{- end }}
{{- if regexMatch "consul\\.token[^F]" (toJson $v) }}
{{- fail "consul.token: it would be in clear text in the ConfigMap cilium-config, or among the arguments of pods: put the token into a Secret, as the key token, name the Secret in kvstore.secretName and set the option consul.tokenFile=/var/lib/cilium/kvstore/token (clustermesh.store.secretName and /var/lib/cilium/mesh-store/token)" }}
{{- end }}
{{- range $name, $store := dict "kvstore" $v.kvstore "clustermesh.store" $v.clustermesh.store }}{{ if $store.type }}
{{- $options := $store.options | default dict }}
{{- range $k, $x := $options }}
{{- if not (hasPrefix (printf "%s." $store.type) $k) }}{{ fail (printf "%s.options: %s is no option of %s, which is %s.type" $name $k $store.type $name) }}{{ end }}
{{- end }}
{{- if not (or (hasKey $options (printf "%s.address" $store.type)) (hasKey $options "etcd.config") (get ($v.extraConfig | default dict) "kvstore-opt")) }}
{{- fail (printf "%s.type=%s: where is it? Set %s.options.%s" $name $store.type $name (ternary "etcd.address, or etcd.config" "consul.address" (eq $store.type "etcd"))) }}
{{- end }}
{{- end }}{{ end }}
{{- include "hawser.checkUpgrade" . }}
{{- /* Agents and operator serve on the node. */}}
{{- $ports := list
  (dict "name" "agent.healthPort" "port" $v.agent.healthPort "used" true)
  (dict "name" "operator.healthPort" "port" $v.operator.healthPort "used" true)
  (dict "name" "prometheus.agent.port" "port" $v.prometheus.agent.port "used" $v.prometheus.agent.enabled)
  (dict "name" "prometheus.operator.port" "port" $v.prometheus.operator.port "used" $v.prometheus.operator.enabled)
  (dict "name" "hubble.metrics.port" "port" $v.hubble.metrics.port "used" (include "hawser.flowMetrics" .root))
  (dict "name" "hubble.listenPort" "port" $v.hubble.listenPort "used" (include "hawser.servesFlows" .root)) }}
{{- $names := dict }}
{{- range $ports }}{{ if .used }}
{{- $port := toString .port }}
{{- if hasKey $names $port }}{{ fail (printf "%s and %s are both %s: agents and operator share the addresses of their node" (get $names $port) .name $port) }}{{ end }}
{{- $_ := set $names $port .name }}
{{- end }}{{ end }}
{{- end -}}

{{/*
Fails with changes that cut the nodes of a running cluster from each other while agents are replaced one after the other: agents
stay ready, so a rollout goes through all of them. Each can be allowed by its new value. Where a chart is rendered without the
cluster there is nothing to compare with. It is called like the check.
*/}}
{{- define "hawser.checkUpgrade" -}}
{{- $config := .config }}
{{- $is := dict }}
{{- range $k, $x := $config }}{{ $_ := set $is $k (toString $x) }}{{ end }}
{{- $old := lookup "v1" "ConfigMap" .root.Release.Namespace "cilium-config" | default dict }}
{{- if eq (dig "metadata" "labels" "app.kubernetes.io/part-of" "" $old) "hawser" }}
{{- $was := dig "data" dict $old }}
{{- $allowed := get (.root.Values.upgrade | default dict) "allow" | default list }}
{{- $changes := list
  (dict "value" "routing.mode" "option" "routing-mode" "what" "nodes of different modes drop the packets of each other's pods")
  (dict "value" "routing.tunnelPort" "option" "tunnel-port" "what" "nodes with different ports do not get each other's packets")
  (dict "value" "cluster.id" "option" "cluster-id" "what" "every pod gets another identity, which nodes with the other number refuse")
  (dict "value" "kvstore.type" "option" "kvstore" "what" "agents with a store do not know the nodes and pods of agents without it, or with another one")
  (dict "value" "identity.allocationMode" "option" "identity-allocation-mode" "what" "the same ID has different labels for different agents: go step by step (docs/user/identities.md)")
  (dict "value" "ciliumEndpointSlice.enabled" "option" "enable-cilium-endpoint-slice" "what" "agents read slices, which the operator deletes: first let them read CiliumEndpoints (docs/user/endpoint-slices.md)")
  (dict "value" "ipam.mode" "option" "ipam" "what" "pods keep addresses that their nodes may have no longer: drain the nodes first") }}
{{- $steps := dict "kvstore" 1 "doublewrite-readkvstore" 2 "doublewrite-readcrd" 3 "crd" 4 }}
{{- range $c := $changes }}
{{- $from := get $was $c.option }}
{{- $to := get $is $c.option }}
{{- $same := or (eq $from $to) (and (not $from) (ne $c.option "kvstore")) }}
{{- if eq $c.option "tunnel-port" }}{{ $same = or $same (ne (get $was "routing-mode") "tunnel") (ne (get $is "routing-mode") "tunnel") }}{{ end }}
{{- if eq $c.option "identity-allocation-mode" }}{{ $same = or $same (has (sub (get $steps $from) (get $steps $to) | int) (list 1 -1)) }}{{ end }}
{{- if eq $c.option "enable-cilium-endpoint-slice" }}
{{- $to = $to | default "false" }}
{{- $agents := lookup "apps/v1" "DaemonSet" $.root.Release.Namespace "hawser-agent" | default dict }}
{{- $same = or (ne $from "true") (eq $to "true") (contains "\"--enable-cilium-endpoint-slice=false\"" (toJson $agents)) }}
{{- end }}
{{- if and (eq $from "cluster-pool") (eq $to "multi-pool") (eq (get $is "enable-cluster-pool-to-multi-pool-migration") "true") }}{{ $same = true }}{{ end }}
{{- if not (or $same (has (printf "%s=%s" $c.value $to) $allowed)) }}
{{- fail (printf "%[1]s=%[2]s: it is %[3]q now. Until all agents are replaced, %[4]s. docs/user/install.md says what to do instead (Changes that cut nodes from each other); to do it all the same, add --set 'upgrade.allow={%[1]s=%[2]s}'" $c.value $to $from $c.what) }}
{{- end }}
{{- end }}
{{- /* Whoever gets packets of DSR must be a node that takes them. */}}
{{- $dsr := false }}
{{- range $of := list $was $is }}
{{- if and (eq (get $of "kube-proxy-replacement") "true") (or (has (get $of "bpf-lb-mode") (list "dsr" "hybrid")) (eq (get $of "bpf-lb-mode-annotation") "true")) }}{{ $dsr = true }}{{ end }}
{{- end }}
{{- $from := get $was "kube-proxy-replacement" }}
{{- $to := get $is "kube-proxy-replacement" }}
{{- if and $dsr $from (ne $from $to) (not (has (printf "kubeProxyReplacement=%s" $to) $allowed)) }}
{{- fail (printf "kubeProxyReplacement=%[1]s together with DSR (loadBalancer.mode, loadBalancer.modeAnnotation): until all agents are replaced, some nodes send packets by DSR to others that do not take them. Upgrade twice: change kubeProxyReplacement while loadBalancer.mode is snat and loadBalancer.modeAnnotation is false; to do both at once, add --set 'upgrade.allow={kubeProxyReplacement=%[1]s}'" $to) }}
{{- end }}
{{- end }}
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
