package main

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"encoding/pem"
	"flag"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"
)

const chart = "../helm/hawser"

func renderWith(t *testing.T, values string) (string, error) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "values.yaml")
	if err := os.WriteFile(file, []byte(values), 0o600); err != nil {
		t.Fatal(err)
	}
	return render(chart, file)
}

func TestCommittedFileIsCurrent(t *testing.T) {
	t.Parallel()
	for file, values := range map[string]string{"../hawser.yaml": "", "../testdata/hubble.yaml": "../testdata/hubble-values.yaml"} {
		want, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		got, err := render(chart, values)
		if err != nil {
			t.Fatal(err)
		}
		if got != string(want) {
			t.Errorf("%s is not what the chart renders: run make generate", file)
		}
	}
}

type row struct {
	name, values string
	has, hasNot  []string // regular expressions
}

// rows are values of the chart, and what must and must not be in what it renders. Programs take the
// options of all of them; see TestOptionsOfRows.
func rows() []row {
	return []row{
		{"defaults", "", []string{`identity-management-mode: "agent"`, `identity-allocation-mode: "crd"`, `ciliumidentities\]\n +verbs: \[create, update\]`, `podAntiAffinity`, `resources: \[events\]\n +verbs: \[create, patch\]`}, []string{`verbs: \[get, create, update\]`, `pods/status`, `PodMonitor`, `kvstore`, `CILIUM_SOCK`, `HUBBLE_SERVER`, `fsGroup`, `unmanaged-pod-watcher`, `KUBERNETES_SERVICE_HOST`, `cluster-pool-ipv6`, `hawser-dashboard`, `list, watch, create, update, delete`, `ciliumpodippools\]`}},
		{"operator makes identities", "identity: {managementMode: operator}", []string{`identity-management-mode: "operator"`, `ciliumidentities\]\n +verbs: \[get, create, update\]`, `ciliumendpoints\]\n +verbs: \[patch\]`, `resources: \[events\]\n +verbs: \[create, patch\]`}, []string{`ciliumidentities\]\n +verbs: \[create, update\]`}},
		{"both make identities", "identity: {managementMode: both}", []string{`identity-management-mode: "both"`, `ciliumidentities\]\n +verbs: \[get, create, update\]`, `ciliumendpoints\]\n +verbs: \[patch\]`, `resources: \[events\]\n +verbs: \[create, patch\]`, `ciliumidentities\]\n +verbs: \[create, update\]`}, nil},
		{"strict readiness", "identity: {podReadiness: strict}", []string{`pod-readiness: "strict"`, `resources: \[pods/status\]\n +verbs: \[patch\]`}, nil},
		{"kvstore", "identity: {allocationMode: kvstore}\nkvstore: {type: etcd, options: {etcd.address: 'http://192.0.2.1:2379', etcd.keepaliveTimeout: 5s, etcd.qps: 50}}",
			[]string{`kvstore: "etcd"`, `kvstore-opt: "etcd.address=http://192.0.2.1:2379,etcd.keepaliveTimeout=5s,etcd.qps=50"`}, []string{`secretName: kvstore`}},
		{"kvstore, identities by the operator", "identity: {allocationMode: kvstore, managementMode: operator}\nkvstore: {type: etcd, options: {etcd.address: 'http://192.0.2.1:2379'}}",
			nil, []string{`ciliumidentities\]\n +verbs: \[create, update\]`, `name: hawser-agent\n  namespace: \S+\n(?s:.{0,300})resources: \[leases\]`}},
		// Agents of both kinds and the operator, which is not root, read the files of the Secret.
		{"kvstore with certificates", "identity: {allocationMode: kvstore}\nkvstore: {type: etcd, secretName: etcd-access, options: {etcd.config: /var/lib/cilium/kvstore/etcd.config}}\n" +
			"balancer: {nodeSelector: {role: balancer}}\nrouting: {mode: native}",
			[]string{`kvstore-opt: "etcd.config=/var/lib/cilium/kvstore/etcd.config"`,
				`(?s)(name: kvstore, mountPath: /var/lib/cilium/kvstore, readOnly: true.*?){3}`,
				`(?s)(name: kvstore, secret: \{secretName: etcd-access, defaultMode: 256.*?){2}`,
				`(?s)kind: Deployment.*fsGroup: 65532.*name: kvstore, secret: \{secretName: etcd-access, defaultMode: 288`}, nil},
		{"kvstore with users of agents and operator", "identity: {allocationMode: kvstore, managementMode: operator}\n" +
			"kvstore: {type: etcd, secretName: for-agents, operatorSecretName: for-operator, options: {etcd.config: /var/lib/cilium/kvstore/etcd.config}}",
			[]string{`secretName: for-agents, defaultMode: 256`, `name: kvstore, secret: \{secretName: for-operator, defaultMode: 288`}, []string{`secretName: for-agents, defaultMode: 288`}},
		{"kvstore with a token", "identity: {allocationMode: kvstore}\nkvstore: {type: consul, secretName: consul-access, options: {consul.address: 'https://192.0.2.1:8501', consul.tokenFile: /var/lib/cilium/kvstore/token, consul.plainKeys: true}}",
			[]string{`kvstore-opt: "consul.address=https://192.0.2.1:8501,consul.plainKeys=true,consul.tokenFile=/var/lib/cilium/kvstore/token"`}, nil},
		{"a store for other clusters", "cluster: {id: 7}\nclustermesh: {secretName: others, store: {type: etcd, secretName: mesh, options: {etcd.config: /var/lib/cilium/mesh-store/etcd.config}}}",
			[]string{`--kvstore-opt=etcd.config=/var/lib/cilium/mesh-store/etcd.config`, `name: clustermesh, secret: \{secretName: others,`, `cluster-id: "7"`}, []string{`secretName: cilium-clustermesh`}},
		{"files that options name", "extraConfig: {label-prefix-file: /etc/labels/list.json}\n" +
			"agent: {extraVolumes: [{name: labels, configMap: {name: labels}}], extraVolumeMounts: [{name: labels, mountPath: /etc/labels}]}\n" +
			"operator: {extraVolumes: [{name: labels, configMap: {name: labels}}], extraVolumeMounts: [{name: labels, mountPath: /etc/labels}]}\n" +
			"balancer: {nodeSelector: {role: balancer}}\nrouting: {mode: native}",
			[]string{`(?s)(mountPath: /etc/labels\n +name: labels.*?- configMap:\n +name: labels\n +name: labels.*?){3}`, `fsGroup: 65532`}, nil},
		// hawser, started in the pod, finds the agent.
		{"another state directory", "agent: {stateDir: /srv/hawser}\nbalancer: {nodeSelector: {role: balancer}}\nrouting: {mode: native}\nhubble: {enabled: true}",
			[]string{`(?s)(name: CILIUM_SOCK\n +value: "/srv/hawser/cilium.sock"\n +- name: HUBBLE_SERVER\n +value: "unix:///srv/hawser/hubble.sock".*?){2}kind: Deployment`, `socket-path: "/srv/hawser/cilium.sock"`, `hubble-socket-path: "/srv/hawser/hubble.sock"`}, nil},
		{"another socket", "extraConfig: {socket-path: /srv/agent.sock}", []string{`name: CILIUM_SOCK\n +value: "/srv/agent.sock"`}, []string{`HUBBLE_SERVER`}},
		{"many clusters", "cluster: {id: 300}\nextraConfig: {max-connected-clusters: 511}", []string{`cluster-id: "300"`, `max-connected-clusters: "511"`}, nil},
		{"no pods are restarted", "operator: {podRestartSelector: ''}", []string{`unmanaged-pod-watcher-interval: "0s"`}, []string{`pod-restart-selector`}},
		{"certificates of others", "hubble: {enabled: true, tls: {server: {existingSecret: a}}, relay: {enabled: true, tls: {client: {existingSecret: b}, server: {existingSecret: c}}}, ui: {enabled: true, tls: {client: {existingSecret: d}}}}",
			[]string{`secretName: a,`, `secretName: b,`, `secretName: c,`, `secretName: d,`}, []string{`name: hubble-(server|relay-server|relay-client|ui-client)-certs`}},
		{"certificates of others for agents alone", "hubble: {enabled: true, tls: {server: {existingSecret: a}}, relay: {enabled: true, tls: {client: {existingSecret: b}}}}",
			[]string{`name: hubble-relay-server-certs`, `name: hubble-ui-client-certs`}, []string{`name: hubble-(server|relay-client)-certs`}},
		{"a certificate of others for the relay without the page", "hubble: {enabled: true, relay: {enabled: true, tls: {server: {existingSecret: c}}}}",
			[]string{`name: hubble-relay-client-certs`}, []string{`name: hubble-(relay-server|ui-client)-certs`}},
		{"without kube-proxy", "kubeProxyReplacement: true\nk8s: {serviceHost: 192.0.2.10, servicePort: 6443}\nloadBalancer: {algorithm: maglev, mode: hybrid}",
			[]string{`kube-proxy-replacement: "true"`, `bpf-lb-algorithm: "maglev"`, `bpf-lb-mode: "hybrid"`, `bpf-lb-mode-annotation: "false"`, `(?s)KUBERNETES_SERVICE_HOST\n +value: "192.0.2.10".*KUBERNETES_SERVICE_HOST\n +value: "192.0.2.10"`, `KUBERNETES_SERVICE_PORT\n +value: "6443"`}, nil},
		{"two families", "ipv6: {enabled: true}\nipam: {clusterPool: {ipv4Ranges: [10.1.0.0/16, 10.2.0.0/16]}}",
			[]string{`enable-ipv6: "true"`, `cluster-pool-ipv4-cidr: "10.1.0.0/16,10.2.0.0/16"`, `cluster-pool-ipv6-cidr: "fd00:10:244::/104"`, `cluster-pool-ipv6-mask-size: "120"`}, nil},
		{"addresses of the nodes", "ipam: {mode: kubernetes}", []string{`ipam: "kubernetes"`}, []string{`cluster-pool`}},
		{"addresses of pools", "ipam: {mode: multi-pool, multiPool: {create: ['default=ipv4-cidrs:10.1.0.0/16;ipv4-mask-size:24', 'edge=ipv4-cidrs:10.2.0.0/16;ipv4-mask-size:26'], preAllocation: [default=8, edge=4]}}",
			[]string{`ipam: "multi-pool"`, `ipam-default-ip-pool: "default"`, `ipam-multi-pool-pre-allocation: "default=8,edge=4"`,
				`auto-create-cilium-pod-ip-pools: "default=ipv4-cidrs:10.1.0.0/16;ipv4-mask-size:24,edge=ipv4-cidrs:10.2.0.0/16;ipv4-mask-size:26"`,
				`ciliumpodippools\]\n +verbs: \[get, list, watch\]`, `ciliumpodippools\]\n +verbs: \[get, list, watch, create\]`},
			[]string{`cluster-pool`}},
		{"addresses of another plugin", "ipam: {mode: delegated-plugin}\nextraConfig: {read-cni-conf: /host/etc/cni/net.d/hawser.in}",
			[]string{`ipam: "delegated-plugin"`, `enable-endpoint-health-checking: "false"`, `read-cni-conf: "/host/etc/cni/net.d/hawser.in"`}, []string{`cluster-pool`}},
		{"addresses of a cloud", "ipam: {mode: eni}\nrouting: {mode: native}\nextraConfig: {aws-release-excess-ips: true}",
			[]string{`ipam: "eni"`, `allow-pod-instance-metadata: "false"`, `aws-release-excess-ips: "true"`, `ciliumnodes/status\]\n +verbs: \[patch\]\n  - apiGroups: \[cilium.io\]\n +resources: \[ciliumendpoints\]\n +verbs: \[create, patch, delete\]`}, []string{`cluster-pool-ipv4`}},
		{"addresses of a cloud, of both families", "ipam: {mode: eni}\nrouting: {mode: native}\nipv6: {enabled: true}", []string{`ipam: "eni"`, `enable-ipv6: "true"`}, nil},
		{"addresses of another", "ipam: {mode: azure, cloud: {podMetadata: true}}\nrouting: {mode: native}\nextraConfig: {azure-subscription-id: s, azure-resource-group: g}",
			[]string{`ipam: "azure"`, `allow-pod-instance-metadata: "true"`, `azure-subscription-id: "s"`}, nil},
		{"addresses of pools, from cluster-pool", "ipam: {mode: multi-pool, multiPool: {migrateFromClusterPool: true}}",
			[]string{`enable-cluster-pool-to-multi-pool-migration: "true"`}, []string{`auto-create`, `ciliumpodippools\]\n +verbs: \[get, list, watch, create\]`}},
		{"metrics", "prometheus: {agent: {enabled: true}, operator: {enabled: true}, podMonitor: {enabled: true, labels: {release: prom}}}",
			[]string{`prometheus-serve-addr: ":9962"`, `enable-metrics: "true"`, `(?s)kind: PodMonitor.*kind: PodMonitor`, `release: prom`, `hostPort: 9963`}, nil},
		{"identities in both places", "identity: {allocationMode: doublewrite-readkvstore}\nkvstore: {type: etcd, options: {etcd.address: 'http://192.0.2.1:2379'}}", []string{`identity-allocation-mode: "doublewrite-readkvstore"`, `ciliumidentities\]\n +verbs: \[create, update\]`}, nil},
		{"slices", "ciliumEndpointSlice: {enabled: true, rateLimits: [{nodes: 0, limit: 2.5, burst: 20}]}",
			[]string{`enable-cilium-endpoint-slice: "true"`, `ces-controller-mode: "default"`, `ces-max-ciliumendpoints-per-ces: "100"`,
				`ces-rate-limits: "\[\{\\"burst\\":20,\\"limit\\":2.5,\\"nodes\\":0\}\]"`, `ciliumendpointslices\]\n +verbs: \[list, watch, get, create, patch, delete\]`,
				`ciliumendpoints\]\n +verbs: \[create, patch, delete\]`, `namespaces\]\n +verbs: \[watch\]`}, []string{`disable-endpoint-crd`}},
		{"slices without endpoints", "identity: {managementMode: operator}\nciliumEndpointSlice: {enabled: true, mode: slim}",
			[]string{`ces-controller-mode: "slim"`, `disable-endpoint-crd: "true"`, `ciliumendpoints\]\n +verbs: \[create, patch, delete\]`}, nil},
		{"dashboard", "prometheus: {dashboard: {enabled: true, labels: {grafana_dashboard: yes-please}}}",
			[]string{`name: hawser-dashboard`, `grafana_dashboard: yes-please`, `(?m)^    +"title": "Hawser"`}, nil},
		{"groups of AWS", "policy: {groups: {enabled: true, interval: 5m}}",
			[]string{`policy-external-group-sync-interval: "5m"`, `ciliumclusterwidenetworkpolicies\]\n +verbs: \[list, watch, create, update, delete\]`}, nil},
		{"flows", "hubble: {enabled: true, metrics: {enabled: [drop, tcp]}}", []string{`enable-hubble: "true"`, `hubble-event-buffer-capacity: "4095"`,
			`hubble-metrics: "drop tcp"`, `hubble-metrics-server: ":9965"`, `hubble-socket-path: "/var/run/cilium/hubble.sock"`},
			[]string{`hubble-listen-address`, `kind: Secret`, `name: hubble-relay`, `hubble-tls`}},
		{"flows of all nodes", "cluster: {name: c7}\nhubble: {enabled: true, relay: {enabled: true, replicas: 2}}",
			[]string{`hubble-listen-address: ":4244"`, `name: hubble-server-certs`, `(?s)kind: PodDisruptionBudget.*name: hubble-relay`, `--cluster-name=c7`, `internalTrafficPolicy: Local`,
				`secretName: hubble-server-certs, optional: true`},
			[]string{`disable-tls`, `disable-client-tls`, `disable-server-tls`, `hubble-ui-token`, `hubble-metrics`, `type: (NodePort|LoadBalancer)`}},
		{"flows of all nodes, for everybody", "hubble: {enabled: true, tls: {enabled: false}, relay: {enabled: true, tls: {server: {enabled: false}}}}",
			[]string{`hubble-disable-tls: "true"`, `--disable-client-tls`, `--disable-server-tls`, `hubble-peer.kube-system.svc.cluster.local:80`}, []string{`kind: Secret`, `hubble-tls-`, `name: hubble-tls`}},
		{"the page", "hubble: {enabled: true, relay: {enabled: true}, ui: {enabled: true}}", []string{`--token-file=`, `name: hubble-ui-token`, `--server=hubble-relay.kube-system.svc.cluster.local:443`},
			[]string{`NodePort`, `LoadBalancer`, `kind: Ingress`}},
		{"nodes without pods", "balancer: {nodeSelector: {role: balancer}}\nrouting: {mode: native}",
			[]string{`name: hawser-balancer`, `--datapath-mode=lb-only`, `nodeSelector:\n +role: balancer`, `key: "role", operator: NotIn, values: \["balancer"\]`}, nil},
		{"nodes without pods, with what every agent has", "balancer: {nodeSelector: {role: balancer}}\nrouting: {mode: native}\nprometheus: {agent: {enabled: true}, podMonitor: {enabled: true}}\n" +
			"hubble: {enabled: true, metrics: {enabled: [drop]}}\nagent: {extraArgs: [--enable-cilium-endpoint-slice=false], extraEnv: [{name: A, value: b}], podLabels: {team: net}, podAnnotations: {note: x}}",
			[]string{`(?s)name: hawser-balancer\n.*team: net\n.*note: x\n.*"--enable-cilium-endpoint-slice=false"\n +- --datapath-mode=lb-only\n.*- name: A\n +value: b\n.*containerPort: 9962, hostPort: 9962.*containerPort: 9965, hostPort: 9965.*kind: Deployment`,
				`(?s)kind: PodMonitor\nmetadata:\n  name: hawser-balancer\n.*k8s-app: hawser-balancer\n.*honorLabels: true`}, nil},
		{"labels that policies select", "identity: {managementMode: operator, relevantLabels: policy}", []string{`identity-relevant-labels: "policy"`}, nil},
		{"a store from further options", "identity: {allocationMode: kvstore}\nextraConfig: {kvstore: etcd, kvstore-opt: 'etcd.address=http://192.0.2.1:2379'}", []string{`identity-allocation-mode: "kvstore"`, `kvstore: "etcd"`}, nil},
		{"ports of what is off", "operator: {healthPort: 9962}\nhubble: {listenPort: 9879}", []string{`operator-api-serve-addr: "localhost:9962"`}, nil},
		{"further options", "extraConfig: {bpf-ct-max: 524288, debug: true, mtu: 1400}", []string{`bpf-ct-max: "524288"`, `debug: "true"`, `mtu: "1400"`}, []string{`debug: "false"`}},
		{"further options that switch off", "routing: {mtu: 1400}\nextraConfig: {enable-ipv4-masquerade: false, auto-direct-node-routes: false, mtu: 0}",
			[]string{`enable-ipv4-masquerade: "false"`, `auto-direct-node-routes: "false"`, `mtu: "0"`}, []string{`enable-ipv4-masquerade: "true"`}},
		{"one operator", "operator: {replicas: 1}", []string{`replicas: 1\n`}, []string{`PodDisruptionBudget`}},
		{"a taint of another key", "extraConfig: {agent-not-ready-taint-key: example.com/no-agent}",
			[]string{`tolerations:\n(?: .*\n)+? +- key: example.com/no-agent\n +operator: Exists\n`}, nil},
		{"further arguments", "agent: {extraArgs: ['', --debug]}\noperator: {extraArgs: ['']}", []string{`config-map\n +- "--debug"\n`}, []string{`- ""\n`}}, // helm reads {} as ['']
		{"other ways to update", "agent: {updateStrategy: {type: OnDelete}}\noperator: {updateStrategy: {type: Recreate}}",
			[]string{`updateStrategy:\n    type: OnDelete\n`, `strategy:\n    type: Recreate\n`}, []string{`rollingUpdate`}}, // the server refuses it then
		{"an update strategy without type", "agent: {updateStrategy: {rollingUpdate: {maxUnavailable: 7}}}", []string{`updateStrategy:\n    rollingUpdate:\n      maxUnavailable: 7\n    type: RollingUpdate`}, nil},
		{"image", "image: {repository: registry.example/hawser, tag: v1, pullPolicy: Always, pullSecrets: [{name: s}]}", []string{`image: registry.example/hawser:v1`, `imagePullSecrets:\n +- name: s`}, []string{`hawser:dev`}},
	}
}

// TestValues renders the chart with values and looks for what must be there and what must not:
// among others, agents whose operator makes identities have no right to write them, "Security" of
// CFP-27752.
func TestValues(t *testing.T) {
	t.Parallel()
	for _, tt := range rows() {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			got, err := renderWith(t, tt.values)
			if err != nil {
				t.Fatal(err)
			}
			for _, p := range tt.has {
				if !regexp.MustCompile(p).MatchString(got) {
					t.Errorf("no %s", p)
				}
			}
			for _, p := range tt.hasNot {
				if m := regexp.MustCompile(p).FindString(got); m != "" {
					t.Errorf("has %s", m)
				}
			}
		})
	}
}

// TestSchema: a value that is misspelled or is invalid is refused before anything is installed.
func TestSchema(t *testing.T) {
	t.Parallel()
	for values, want := range map[string]string{
		"ipv5: {enabled: true}":     "ipv5",
		"agent: {priorityClass: x}": "priorityClass",
		"ipam: {mode: magic}":       "mode",
		"ipam: {mode: eni}":         "routing.mode=native",
		"ipam: {mode: alibabacloud}\nrouting: {mode: native}\nipv6: {enabled: true}": "ipv6.enabled=false",
		"cluster: {name: Not_A_Name}":                      "name",
		"operator: {replicas: 0}":                          "replicas",
		"cni: {confFile: a/b.conflist}":                    "confFile",
		"cni: {binPath: opt/cni/bin}":                      "binPath",
		"identity: {managementMode: unknown}":              "managementMode",
		"ciliumEndpointSlice: {maxEndpoints: 0}":           "maxEndpoints",
		"ciliumEndpointSlice: {mode: fat}":                 "mode",
		"extraConfig: {devices: [eth0]}":                   "devices",
		"ciliumEndpointSlice: {enabled: true, mode: slim}": "identity.managementMode=operator",
		"image: {pullSecrets: [registry]}":                 "pullSecrets",
		"hubble: {relays: {enabled: true}}":                "relays",
		"hubble: {metrics: {enabled: drop}}":               "metrics",
		"hubble: {relay: {enabled: true}}":                 "hubble.enabled",
		"hubble: {enabled: true, ui: {enabled: true}}":     "hubble.relay.enabled",
		"hubble: {eventBufferCapacity: 65536}":             "eventBufferCapacity",
		"ipam: {clusterPool: {ipv4MaskSize: 33}}":          "ipv4MaskSize",
		"ipv4: {enabled: false}":                           "ipv4.enabled and ipv6.enabled",
		"extraConfig: {enable-ipv4: 'false'}":              "ipv4.enabled and ipv6.enabled",
		"ipam: {mode: crd}":                                "routing.mode=native",
		"ipam: {mode: crd}\nrouting: {mode: native}":       "routing.ipv4NativeCIDR",
		"ipam: {mode: crd}\nipv6: {enabled: true}\nrouting: {mode: native, ipv4NativeCIDR: 10.0.0.0/8}": "routing.ipv6NativeCIDR",
		"routing: {mtu: 1279}":                            "mtu",
		"routing: {devices: [eth0, eth1]}":                "devices",
		"loadBalancer: {mode: dsr}":                       "kubeProxyReplacement=true",
		"identity: {allocationMode: kvstore}":             "kvstore.type",
		"identity: {allocationMode: doublewrite-readcrd}": "kvstore.type",
		"identity: {allocationMode: doublewrite-readcrd, managementMode: operator}\nkvstore: {type: etcd}": "identity.managementMode=agent",
		"identity: {relevantLabels: policy}":                                                                             "identity.managementMode=operator",
		"identity: {relevantLabels: policy, managementMode: operator}\nkvstore: {type: etcd}":                            "kvstore.type",
		"identity: {relevantLabels: policy, managementMode: operator}\nclustermesh: {store: {type: etcd}}":               "clustermesh.store.type",
		"identity: {relevantLabels: policy, managementMode: operator}\ncluster: {id: 3}":                                 "cluster.id",
		"identity: {relevantLabels: policy, managementMode: operator}\nciliumEndpointSlice: {enabled: true, mode: slim}": "ciliumEndpointSlice.mode=default",
		"agent: {stateDir: /" + strings.Repeat("x", 96) + "}":                                                            "stateDir",
		"agent: {healthPort: 9234}": "agent.healthPort and operator.healthPort are both 9234",
		"operator: {healthPort: 9962}\nprometheus: {agent: {enabled: true}}":                                                                                            "operator.healthPort and prometheus.agent.port are both 9962",
		"hubble: {enabled: true, listenPort: 9879, relay: {enabled: true}}":                                                                                             "agent.healthPort and hubble.listenPort are both 9879",
		"kvstore: {type: etcd, options: {etcd.address: 'http://192.0.2.1:2379'}}\nclustermesh: {store: {type: etcd, options: {etcd.address: 'http://192.0.2.2:2379'}}}": "clustermesh.store.type",

		"hubble: {metrics: {enabled: [dns, httpV2]}}":                                                              "drop|flow",
		"hubble: {metrics: {enabled: ['drop,http']}}":                                                              "drop|flow",
		"cluster: {id: 300}":                                                                                       "extraConfig.max-connected-clusters=511",
		"extraConfig: {cluster-id: 256}":                                                                           "extraConfig.max-connected-clusters=511",
		"extraConfig: {max-connected-clusters: 300}":                                                               "255 or 511",
		"ipam: {clusterPool: {ipv4Ranges: [abc]}}":                                                                 "ipv4Ranges",
		"ipam: {clusterPool: {ipv4Ranges: [10.0.0.256/16]}}":                                                       "ipv4Ranges",
		"ipam: {clusterPool: {ipv4Ranges: [10.0.0.0/33]}}":                                                         "ipv4Ranges",
		"ipam: {clusterPool: {ipv4Ranges: ['fd00::/64']}}":                                                         "ipv4Ranges",
		"ipam: {clusterPool: {ipv6Ranges: [10.0.0.0/8]}}":                                                          "ipv6Ranges",
		"ipam: {clusterPool: {ipv6Ranges: ['fd00::/129']}}":                                                        "ipv6Ranges",
		"ipam: {clusterPool: {ipv4Ranges: [10.0.0.0/25]}}":                                                         "ipam.clusterPool.ipv4MaskSize=24: the range 10.0.0.0/25",
		"routing: {ipv4NativeCIDR: 10.0.0.0}":                                                                      "ipv4NativeCIDR",
		"routing: {ipv6NativeCIDR: 10.0.0.0/8}":                                                                    "ipv6NativeCIDR",
		"kvstore: {type: etcd, options: {etcd.adress: 'http://192.0.2.1:2379'}}":                                   "etcd.adress",
		"kvstore: {type: etcd, options: {etcd: {address: 'http://192.0.2.1:2379'}}}":                               "'etcd'", // --set without backslashes
		"kvstore: {type: etcd, options: {etcd.qps: -1}}":                                                           "etcd.qps",
		"kvstore: {type: etcd, options: {etcd.keepaliveTimeout: soon}}":                                            "etcd.keepaliveTimeout",
		"kvstore: {type: etcd, options: {consul.address: 'http://192.0.2.1:8500'}}":                                "kvstore.options: consul.address is no option of etcd",
		"kvstore: {type: etcd}":                                                                                    "kvstore.options.etcd.address, or etcd.config",
		"kvstore: {type: consul, options: {consul.datacenter: a}}":                                                 "kvstore.options.consul.address",
		"clustermesh: {store: {type: etcd, options: {etcd.qps: 5}}}":                                               "clustermesh.store.options.etcd.address",
		"kvstore: {type: consul, options: {consul.address: 'a:8500', consul.token: s}}":                            "consul.tokenFile=",
		"clustermesh: {store: {type: consul, options: {consul.address: 'a:8500', consul.token: s}}}":               "consul.tokenFile=",
		"extraConfig: {kvstore: consul, kvstore-opt: 'consul.address=a:8500,consul.token=s'}":                      "consul.tokenFile=",
		`extraConfig: {kvstore: consul, kvstore-opt: '{"consul.address": "a:8500", "consul.token": "s"}'}`:         "consul.tokenFile=",
		"agent: {extraArgs: ['--kvstore-opt=consul.token=s']}":                                                     "consul.tokenFile=",
		"agent: {extraVolumes: [{emptyDir: {}}]}":                                                                  "extraVolumes",
		"hubble: {enabled: true, tls: {server: {existingSecret: a}}, relay: {enabled: true}}":                      "hubble.tls.server.existingSecret: the other side would know only the authorities of the chart, and refuse it: set hubble.relay.tls.client.existingSecret",
		"hubble: {enabled: true, relay: {enabled: true, tls: {client: {existingSecret: a}}}}":                      "set hubble.tls.server.existingSecret",
		"hubble: {enabled: true, relay: {enabled: true, tls: {server: {existingSecret: a}}}, ui: {enabled: true}}": "set hubble.ui.tls.client.existingSecret",
		"hubble: {enabled: true, relay: {enabled: true}, ui: {enabled: true, tls: {client: {existingSecret: a}}}}": "set hubble.relay.tls.server.existingSecret",
	} {
		if _, err := renderWith(t, values); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", values, err)
		}
	}
}

// object is what tests look at of one.
type object struct {
	Kind     string
	Metadata struct{ Name string }
	Data     map[string]string
	Rules    []struct{ APIGroups, Resources, Verbs []string }
	Spec     struct {
		Template struct {
			Spec struct{ Containers []struct{ Args []string } }
		}
	}
}

func objects(t *testing.T, text string) (out []object) {
	t.Helper()
	for doc := range strings.SplitSeq(text, "\n---\n") {
		var o object
		if err := yaml.Unmarshal([]byte(doc), &o); err != nil {
			t.Fatalf("%v in %s", err, doc)
		}
		out = append(out, o)
	}
	return out
}

var update = flag.Bool("update", false, "write the file of TestOptionsOfRows")

// options are those of one row: of the ConfigMap, as far as they are not those of the defaults, and
// of the command lines.
type options struct {
	Name      string
	ConfigMap map[string]*string // nil for what the defaults have and the row has not
	Args      map[string][]string
}

// TestOptionsOfRows keeps a file with the options of each row: the test of the manifests, which has
// the programs and no Helm, sees that they take them.
func TestOptionsOfRows(t *testing.T) {
	t.Parallel()
	defaults, err := render(chart, "")
	if err != nil {
		t.Fatal(err)
	}
	base := map[string]string{}
	for _, o := range objects(t, defaults) {
		if o.Kind == "ConfigMap" {
			base = o.Data
		}
	}
	var all []options
	for _, r := range rows() {
		text, err := renderWith(t, r.values)
		if err != nil {
			t.Fatalf("%s: %v", r.name, err)
		}
		one := options{Name: r.name, ConfigMap: map[string]*string{}, Args: map[string][]string{}}
		for _, o := range objects(t, text) {
			switch {
			case o.Kind == "ConfigMap" && o.Metadata.Name == "cilium-config":
				for k, v := range o.Data {
					if was, ok := base[k]; !ok || was != v {
						one.ConfigMap[k] = &v
					}
				}
				for k := range base {
					if _, ok := o.Data[k]; !ok {
						one.ConfigMap[k] = nil
					}
				}
			case strings.HasPrefix(o.Metadata.Name, "hawser-") && len(o.Spec.Template.Spec.Containers) > 0:
				one.Args[o.Metadata.Name] = o.Spec.Template.Spec.Containers[0].Args
			}
		}
		all = append(all, one)
	}
	data, err := yaml.Marshal(all)
	if err != nil {
		t.Fatal(err)
	}
	const file = "../testdata/options.yaml"
	data = append([]byte("# Generated from the rows of deploy/render/main_test.go. DO NOT EDIT.\n"), data...)
	if *update {
		if err := os.WriteFile(file, data, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if got, err := os.ReadFile(file); err != nil || string(got) != string(data) {
		t.Errorf("%s is not what the chart renders (%v): run make generate", file, err)
	}
}

// TestRightsOnTheWay: one upgrade changes the rights of all agents at once and restarts them one
// after the other. On the way from a key-value store to objects, to slices without CiliumEndpoints,
// and back, those of the step before need theirs until then.
func TestRightsOnTheWay(t *testing.T) {
	t.Parallel()
	rights := func(values string) map[string]bool {
		text, err := renderWith(t, values)
		if err != nil {
			t.Fatal(err)
		}
		out := map[string]bool{}
		for _, o := range objects(t, text) {
			if o.Metadata.Name != "hawser-agent" {
				continue
			}
			for _, r := range o.Rules {
				for _, resource := range r.Resources {
					for _, verb := range r.Verbs {
						out[strings.Join([]string{o.Kind, r.APIGroups[0], resource, verb}, " ")] = true
					}
				}
			}
		}
		return out
	}
	kept := func(mode string) string {
		return "identity: {allocationMode: " + mode + "}\nkvstore: {type: etcd, options: {etcd.address: 'http://192.0.2.1:2379'}}"
	}
	sliced := func(slices string) string {
		return "identity: {managementMode: operator}\nciliumEndpointSlice: {" + slices + "}"
	}
	for _, steps := range [][]string{
		{kept("kvstore"), kept("doublewrite-readkvstore"), kept("doublewrite-readcrd"), kept("crd")},
		{sliced("enabled: false"), sliced("enabled: true"), sliced("enabled: true, mode: slim")},
	} {
		for i := range len(steps) - 1 {
			for _, way := range [][2]string{{steps[i], steps[i+1]}, {steps[i+1], steps[i]}} {
				then := rights(way[1])
				for r := range rights(way[0]) {
					if !then[r] {
						t.Errorf("from %s to %s: agents lose %s before they are replaced", way[0], way[1], r)
					}
				}
			}
		}
	}
}

// TestRolloutOnChange: programs read options when they start, so their pods must change with the
// options.
func TestRolloutOnChange(t *testing.T) {
	t.Parallel()
	hash := regexp.MustCompile(`hawser.net/config-hash: (\S+)`)
	a, err := renderWith(t, "")
	if err != nil {
		t.Fatal(err)
	}
	b, err := renderWith(t, "log: {debug: true}")
	if err != nil {
		t.Fatal(err)
	}
	x, y := hash.FindAllString(a, -1), hash.FindAllString(b, -1)
	if len(x) != 2 || len(y) != 2 || x[0] == y[0] {
		t.Errorf("hashes %v and %v", x, y)
	}
}

// TestAuthorities: agents answer with one certificate for all nodes, so whoever has broken into a
// node has it. It must not open other nodes, nor the relay, and the relay must take it for no other
// server than an agent.
func TestAuthorities(t *testing.T) {
	t.Parallel()
	text, err := renderWith(t, "cluster: {name: c7}\nhubble: {enabled: true, relay: {enabled: true}, ui: {enabled: true}}")
	if err != nil {
		t.Fatal(err)
	}
	type secret struct{ own, peers *x509.Certificate }
	secrets := map[string]secret{}
	for doc := range strings.SplitSeq(text, "\n---\n") {
		var s struct {
			Kind     string
			Metadata struct{ Name string }
			Data     map[string]string
		}
		if err := yaml.Unmarshal([]byte(doc), &s); err != nil {
			t.Fatal(err)
		}
		if s.Kind != "Secret" || s.Data["tls.crt"] == "" {
			continue
		}
		decode := func(key string) []byte {
			data, err := base64.StdEncoding.DecodeString(s.Data[key])
			if err != nil {
				t.Fatalf("%s: %s: %v", s.Metadata.Name, key, err)
			}
			return data
		}
		if _, err := tls.X509KeyPair(decode("tls.crt"), decode("tls.key")); err != nil {
			t.Fatalf("%s: %v", s.Metadata.Name, err)
		}
		parse := func(key string) *x509.Certificate {
			block, _ := pem.Decode(decode(key))
			c, err := x509.ParseCertificate(block.Bytes)
			if err != nil {
				t.Fatalf("%s: %s: %v", s.Metadata.Name, key, err)
			}
			return c
		}
		secrets[s.Metadata.Name] = secret{parse("tls.crt"), parse("ca.crt")}
	}
	const agent, relay, toAgents, page = "hubble-server-certs", "hubble-relay-server-certs", "hubble-relay-client-certs", "hubble-ui-client-certs"
	for _, tt := range []struct {
		server, name, client string
		want                 bool
	}{
		{agent, "n1.c7.hubble-grpc.cilium.io", toAgents, true},
		{agent, "hubble-peer.c7.hubble-grpc.cilium.io", toAgents, true},
		{agent, "n1.c8.hubble-grpc.cilium.io", toAgents, false},
		{agent, "n1.c7.hubble-grpc.cilium.io", agent, false},
		{agent, "n1.c7.hubble-grpc.cilium.io", relay, false},
		{agent, "hubble-relay.kube-system.svc", page, false},
		{relay, "ui.hubble-relay.cilium.io", page, true},
		{relay, "hubble-relay.kube-system.svc.cluster.local", page, true},
		{relay, "localhost", page, true},
		{relay, "localhost", agent, false},
		{relay, "n1.c7.hubble-grpc.cilium.io", toAgents, false},
	} {
		server, client := secrets[tt.server], secrets[tt.client]
		trust := func(ca *x509.Certificate) *x509.CertPool {
			pool := x509.NewCertPool()
			pool.AddCert(ca)
			return pool
		}
		_, serverErr := server.own.Verify(x509.VerifyOptions{DNSName: tt.name, Roots: trust(client.peers)})
		_, clientErr := client.own.Verify(x509.VerifyOptions{Roots: trust(server.peers), KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}})
		if got := serverErr == nil && clientErr == nil; got != tt.want {
			t.Errorf("%s as %s to %s: %v, want %v (%v, %v)", tt.server, tt.name, tt.client, got, tt.want, serverErr, clientErr)
		}
	}
}
