package migration

import (
	"cmp"
	"context"
	"fmt"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	v2 "github.com/hawser-net/hawser/api/v2"
	"github.com/hawser-net/hawser/internal/k8s"
	"github.com/hawser-net/hawser/internal/k8s/identities"
	"github.com/hawser-net/hawser/internal/labels"
	"github.com/hawser-net/hawser/internal/storekeys"
	"github.com/hawser-net/hawser/pkg/allocator"
	"github.com/hawser-net/hawser/pkg/kvstore"
)

// place is one that can be read and written.
type place interface {
	read(ctx context.Context) (Place, error)
	// write makes an identity where there is none. It returns what is in the way; nil if it was
	// made, or is there already.
	write(ctx context.Context, i Identity) (*Conflict, error)
	// quarantine puts an ID in quarantine if it is free.
	quarantine(ctx context.Context, q Quarantined) error
}

// Keys is the key-value store.
type Keys struct {
	Store kvstore.Backend
	// First and Last bound the IDs of this cluster.
	First, Last allocator.ID
}

// Read returns the identities that the store has.
func (k Keys) Read(ctx context.Context) (Place, error) { return k.read(ctx) }

func (k Keys) read(ctx context.Context) (Place, error) {
	const prefix = storekeys.IdentitiesPrefix + "/id/"
	all, err := k.Store.List(ctx, prefix)
	if err != nil {
		return Place{}, fmt.Errorf("identities of the key-value store: %w", err)
	}
	var p Place
	for _, kv := range all.Pairs {
		id, err := allocator.ParseID(strings.TrimPrefix(kv.Key, prefix))
		set, parseErr := labels.ParseKV(k.Store.Layout().Decode(string(kv.Value)))
		switch {
		case err != nil || parseErr != nil || len(set) == 0:
			p.Faulty = append(p.Faulty, kv.Key)
		case id < k.First || id > k.Last:
			p.Foreign++
		default:
			p.Identities = append(p.Identities, Identity{ID: id, Labels: set.KVString(), age: kv.CreateRevision})
		}
	}
	// Afterwards: what is collected meanwhile is in both.
	if all, err = k.Store.List(ctx, quarantines); err != nil {
		return Place{}, fmt.Errorf("IDs in quarantine in the key-value store: %w", err)
	}
	for _, kv := range all.Pairs {
		id, err := allocator.ParseID(strings.TrimPrefix(kv.Key, quarantines))
		if err == nil && id >= k.First && id <= k.Last {
			was, since := allocator.DecodeQuarantine(kv.Value)
			p.Quarantined = append(p.Quarantined, Quarantined{id, was, since})
		}
	}
	return p, nil
}

// quarantines is above the records of IDs in quarantine.
const quarantines = storekeys.IdentitiesPrefix + "/quarantine/"

func (k Keys) quarantine(ctx context.Context, q Quarantined) error {
	record := quarantines + q.ID.String()
	_, err := k.Store.Txn(ctx, kvstore.Txn{
		If:   []kvstore.Cond{kvstore.Absent(storekeys.IdentitiesPrefix + "/id/" + q.ID.String()), kvstore.Absent(record)},
		Then: []kvstore.Op{kvstore.PutOp(record, allocator.EncodeQuarantine(q.Labels, q.Since), kvstore.Permanent)},
	})
	if err != nil {
		return fmt.Errorf("quarantine of ID %s in the key-value store: %w", q.ID, err)
	}
	return nil
}

// canonicalKV returns the canonical form of labels read from a store, which another program may
// have written in another order. Text that is not a label set is returned unchanged.
func canonicalKV(text string) string {
	if set, err := labels.ParseKV(text); err == nil && len(set) > 0 {
		return set.KVString()
	}
	return text
}

// maxTries bounds the transactions of one write while others keep changing who refers to the
// labels.
const maxTries = 8

func (k Keys) write(ctx context.Context, i Identity) (*Conflict, error) {
	key, record := storekeys.IdentitiesPrefix+"/id/"+i.ID.String(), quarantines+i.ID.String()
	layout := k.Store.Layout()
	txn := kvstore.Txn{
		If:   []kvstore.Cond{kvstore.Absent(key), kvstore.Absent(record)},
		Then: []kvstore.Op{kvstore.PutOp(key, []byte(layout.Encode(i.Labels)), kvstore.Permanent), kvstore.DeleteOp(record)},
		Else: []kvstore.Op{kvstore.GetOp(key), kvstore.GetOp(record)},
	}
	var dirs []string // references stand in one for each form of the labels
	for _, form := range layout.Encodings(i.Labels) {
		dir := storekeys.IdentitiesPrefix + "/value/" + form + "/"
		dirs = append(dirs, dir)
		txn.If, txn.Else = append(txn.If, kvstore.PrefixAbsent(dir)), append(txn.Else, kvstore.ListOp(dir))
	}
	for range maxTries {
		r, err := k.Store.Txn(ctx, txn)
		if err != nil {
			return nil, fmt.Errorf("identity %s in the key-value store: %w", i.ID, err)
		}
		if r.Succeeded {
			return nil, nil
		}
		c := &Conflict{Identity: i}
		there := r.Results[0]
		for _, kv := range there {
			if c.Owner = canonicalKV(layout.Decode(string(kv.Value))); c.Owner == i.Labels {
				return nil, nil
			}
		}
		txn.If[1] = kvstore.Absent(record)
		for _, kv := range r.Results[1] {
			txn.If[1] = kvstore.ValueIs(record, kv.Value) // the labels take their ID back
			if was, _ := allocator.DecodeQuarantine(kv.Value); was != i.Labels {
				c.Owner = cmp.Or(c.Owner, "(in quarantine) "+was)
			}
		}
		byValue := false
		for n, dir := range dirs {
			found, ours := r.Results[2+n], true
			for _, kv := range found {
				if id, err := allocator.ParseID(string(kv.Value)); err == nil && id != i.ID && !strings.Contains(kv.Key[len(dir):], "/") {
					c.Number = id
				}
				ours = ours && string(kv.Value) == i.ID.String()
			}
			switch {
			case len(found) == 0:
				txn.If[2+n] = kvstore.PrefixAbsent(dir)
			case ours && !byValue: // to this ID only, also in a store that was put back since
				txn.If[2+n], byValue = kvstore.PrefixValuesAre(dir, []byte(i.ID.String())), true
			default: // or to longer labels; a transaction takes one condition on values
				txn.If[2+n] = kvstore.PrefixUnchangedSince(dir, r.Revision)
			}
		}
		if c.Owner != "" || len(there) > 0 || c.Number != allocator.NoID {
			return c, nil
		}
	}
	return nil, fmt.Errorf("identity %s in the key-value store: %w", i.ID, allocator.ErrContended)
}

// Objects is the API server.
type Objects struct {
	// Client reaches cilium.io/v2.
	Client rest.Interface
	// First and Last bound the IDs of this cluster.
	First, Last allocator.ID
}

func (o Objects) read(ctx context.Context) (Place, error) {
	var all []v2.CiliumIdentity
	err := k8s.EachPage(ctx, func(ctx context.Context, opts metav1.ListOptions) (*v2.CiliumIdentityList, error) {
		page := &v2.CiliumIdentityList{}
		return page, o.Client.Get().Resource(v2.ResourceIdentities).VersionedParams(&opts, metav1.ParameterCodec).Do(ctx).Into(page)
	}, func() { all = nil }, func(page *v2.CiliumIdentityList) error {
		all = append(all, page.Items...)
		return nil
	})
	if err != nil {
		return Place{}, fmt.Errorf("list of CiliumIdentities: %w", err)
	}
	return OfObjects(all, o.First, o.Last), nil
}

// OfObjects returns the identities that objects stand for. IDs outside of first to last belong
// to other clusters.
func OfObjects(all []v2.CiliumIdentity, first, last allocator.ID) Place {
	var p Place
	for i := range all {
		if was, since, quarantined := identities.Quarantined(&all[i]); quarantined {
			if id, err := allocator.ParseID(all[i].Name); err == nil && id >= first && id <= last {
				p.Quarantined = append(p.Quarantined, Quarantined{id, was, since})
			}
			continue
		}
		switch id, ok := ofObject(&all[i]); {
		case !ok:
			p.Faulty = append(p.Faulty, all[i].Name)
		case id.ID < first || id.ID > last:
			p.Foreign++
		default:
			p.Identities = append(p.Identities, id)
		}
	}
	return p
}

func (o Objects) quarantine(ctx context.Context, q Quarantined) error {
	record := &v2.CiliumIdentity{ObjectMeta: metav1.ObjectMeta{Name: q.ID.String()}}
	identities.Quarantine(record, q.Labels, q.Since)
	err := o.Client.Post().Resource(v2.ResourceIdentities).Body(record).Do(ctx).Error()
	if err != nil && !apierrors.IsAlreadyExists(err) {
		return fmt.Errorf("quarantine of ID %s as CiliumIdentity: %w", q.ID, err)
	}
	return nil
}

func (o Objects) write(ctx context.Context, i Identity) (*Conflict, error) {
	set, err := security(i.Labels)
	if err != nil {
		return nil, fmt.Errorf("identity %s: %w", i.ID, err)
	}
	err = o.Client.Post().Resource(v2.ResourceIdentities).Body(identities.NewObject(i.ID, set)).Do(ctx).Error()
	if err == nil {
		return nil, nil
	}
	if !apierrors.IsAlreadyExists(err) {
		return nil, fmt.Errorf("create CiliumIdentity %s: %w", i.ID, err)
	}
	there := &v2.CiliumIdentity{}
	if err := o.Client.Get().Resource(v2.ResourceIdentities).Name(i.ID.String()).Do(ctx).Into(there); err != nil {
		return nil, fmt.Errorf("read CiliumIdentity %s: %w", i.ID, err)
	}
	if was, _, quarantined := identities.Quarantined(there); quarantined && was == i.Labels { // they take their ID back
		identities.Restore(there, set)
		if err := o.Client.Put().Resource(v2.ResourceIdentities).Name(there.Name).Body(there).Do(ctx).Error(); err != nil {
			return nil, fmt.Errorf("give its labels back to CiliumIdentity %s: %w", i.ID, err)
		}
		return nil, nil
	}
	if owner := canonical(there.SecurityLabels); owner != i.Labels {
		owner = cmp.Or(owner, "an ID in quarantine, or labels that cannot be read")
		return &Conflict{Identity: i, Owner: owner}, nil
	}
	return nil, nil
}
