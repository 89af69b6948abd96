package bench

import (
	"context"
	"fmt"
	"time"

	"github.com/hawser-net/hawser/internal/bench/child"
	"github.com/hawser-net/hawser/internal/storekeys"
	"github.com/hawser-net/hawser/pkg/kvstore"
)

// firstIdentity is the number of the first identity of a pretended rest of the cluster.
const firstIdentity = 20_000

// identityKeys are the keys of identities of pods elsewhere, two each.
func identityKeys(i int) (key, value string) {
	id := firstIdentity + i/2
	set := fmt.Sprintf("cni:app=app-%d;k8s:io.cilium.k8s.policy.cluster=default;k8s:io.kubernetes.pod.namespace=default;", i/2)
	if i%2 == 0 {
		return kvstore.JoinKey(storekeys.IdentitiesPrefix, "id", fmt.Sprint(id)), set
	}
	return kvstore.JoinKey(storekeys.IdentitiesPrefix, "value", set, "192.0.2.200"), fmt.Sprint(id)
}

// remotePod is the key of a pod on another node that does not exist.
func remotePod(i, identities int) (key, value string) {
	ip := fmt.Sprintf("10.%d.%d.%d", 100+i>>16, i>>8&0xff, i&0xff)
	return kvstore.JoinKey(storekeys.IPsPrefix, storekeys.DefaultAddressSpace, ip),
		fmt.Sprintf(`{"IP":%q,"Mask":null,"HostIP":"192.0.2.%d","ID":%d,"Key":0,"Metadata":"","K8sNamespace":"default","K8sPodName":"pod-%d"}`,
			ip, 100+i%100, firstIdentity+i%identities, i)
}

// waitAddresses waits until the node's kernel knows of that many addresses.
func (n *node) waitAddresses(ctx context.Context, count int) error {
	return child.Poll(ctx, 60*time.Second, 50*time.Millisecond, func() error {
		k, err := n.kernel()
		if err != nil {
			return err
		}
		defer k.Close()
		list, err := k.IPCache()
		if err == nil && len(list) < count {
			err = fmt.Errorf("%s knows %d addresses of %d", n.name, len(list), count)
		}
		return err
	})
}
