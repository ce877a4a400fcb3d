// Package postgres keeps quotas in PostgreSQL.
package postgres
