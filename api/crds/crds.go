// Package crds holds the definitions of the custom resources in api/v2 and api/v2alpha1, as the
// operator registers them and as `kubectl apply -f api/crds` does. The files are generated from the
// Go types by `make generate`.
//
// There is no state: every call reads the embedded files again, and the caller owns the result.
package crds

import (
	"embed"
	"fmt"
	"io/fs"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"sigs.k8s.io/yaml"
)

//go:generate go tool -modfile=../../hack/gen/go.mod controller-gen crd paths=../v2 paths=../v2alpha1 output:crd:dir=.

//go:embed *.yaml
var files embed.FS

// SchemaVersionLabel is the label of a definition with the version of its schema, and SchemaVersion
// is the version in this package. A definition in a cluster is replaced only if it has no such
// label or a lower version, so that of several programs the newest one's stays.
const (
	SchemaVersionLabel = "io.cilium.k8s.crd.schema.version"
	SchemaVersion      = "1.33.14"
)

// All returns the definitions, sorted by name. An error means that the program was built wrong.
func All() ([]*apiextensionsv1.CustomResourceDefinition, error) {
	raw, err := Raw()
	if err != nil {
		return nil, err
	}
	out := make([]*apiextensionsv1.CustomResourceDefinition, 0, len(raw))
	for i, data := range raw {
		crd := &apiextensionsv1.CustomResourceDefinition{}
		if err := yaml.UnmarshalStrict(data, crd); err != nil {
			return nil, fmt.Errorf("embedded definition %d: %w", i, err)
		}
		if v := crd.Labels[SchemaVersionLabel]; v != SchemaVersion {
			return nil, fmt.Errorf("embedded definition %s: label %s is %q, not %s", crd.Name, SchemaVersionLabel, v, SchemaVersion)
		}
		out = append(out, crd)
	}
	return out, nil
}

// Raw returns the definitions as YAML, in the order of All. An error means that the program was
// built wrong.
func Raw() ([][]byte, error) {
	names, err := fs.Glob(files, "*.yaml") // sorted, and so by the plural name: all are of one group
	if err != nil {
		return nil, fmt.Errorf("embedded definitions: %w", err)
	}
	out := make([][]byte, 0, len(names))
	for _, name := range names {
		data, err := files.ReadFile(name)
		if err != nil {
			return nil, fmt.Errorf("embedded definition %s: %w", name, err)
		}
		out = append(out, data)
	}
	return out, nil
}
