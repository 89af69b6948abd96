package command

import (
	"context"
	"os"
	"path/filepath"
	"slices"

	"github.com/spf13/cobra"
	"sigs.k8s.io/yaml"

	"github.com/hawser-net/hawser/internal/exitcode"
)

// Kubeconfig says which cluster a command asks, as kubectl's flags of these names do.
type Kubeconfig struct {
	// File is a kubeconfig file, and Context one of its contexts; empty for what kubectl would use.
	File, Context string
}

// AddFlags adds --kubeconfig and --context to c.
func (k *Kubeconfig) AddFlags(a *App, c *cobra.Command) {
	c.Flags().StringVar(&k.File, "kubeconfig", "", "kubeconfig `file`; by default those of KUBECONFIG, or ~/.kube/config")
	c.Flags().StringVar(&k.Context, "context", "", "`name` of a context of the kubeconfig file; the current one by default")
	_ = c.RegisterFlagCompletionFunc("context", k.CompleteContexts(a))
}

// Files are the files that kubectl would read. One that --kubeconfig names must exist: without it
// a pod would use its service account, which may be of another cluster.
func (k *Kubeconfig) Files(a *App) ([]string, error) {
	if k.File != "" {
		if _, err := os.Stat(k.File); err != nil {
			return nil, exitcode.Usagef("--kubeconfig: %w", err)
		}
		return []string{k.File}, nil
	}
	files := filepath.SplitList(a.Getenv("KUBECONFIG"))
	if home := a.Getenv("HOME"); len(files) == 0 && home != "" {
		files = []string{filepath.Join(home, ".kube", "config")}
	}
	return files, nil
}

// CompleteContexts offers the contexts of the files. Files that cannot be read have none.
func (k *Kubeconfig) CompleteContexts(a *App) cobra.CompletionFunc {
	return Completions(func(context.Context) ([]string, error) {
		files, err := k.Files(a)
		var names []string
		for _, file := range files {
			var config struct {
				Contexts []struct {
					Name string `json:"name"`
				} `json:"contexts"`
			}
			data, err := os.ReadFile(file)
			if err != nil || yaml.Unmarshal(data, &config) != nil {
				continue
			}
			for _, c := range config.Contexts {
				names = append(names, c.Name)
			}
		}
		slices.Sort(names)
		return slices.Compact(names), err
	})
}
