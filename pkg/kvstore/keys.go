package kvstore

import "strings"

// JoinKey joins parts with single slashes, drops doubled ones, and has none at the end.
func JoinKey(parts ...string) string {
	key := strings.Join(parts, "/")
	for strings.Contains(key, "//") {
		key = strings.ReplaceAll(key, "//", "/")
	}
	return strings.TrimSuffix(key, "/")
}
