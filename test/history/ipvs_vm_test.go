//go:build netns && vm

package history

// IPVS mode needs a kernel with IPVS and dummy devices, as guests have it.
func init() { modes = []string{ipvs} }
